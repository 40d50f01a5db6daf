# Made by `python -m infra.terraform` from the construct: change that, not this.

data "aws_caller_identity" "this" {}

data "aws_partition" "this" {}

data "aws_region" "this" {}

resource "aws_sqs_queue" "delay_queue" {
  name                       = "${var.endpoint}-delay.fifo"
  fifo_queue                 = true
  deduplication_scope        = "messageGroup"
  fifo_throughput_limit      = "perMessageGroupId"
  delay_seconds              = 900
  visibility_timeout_seconds = 180
  message_retention_seconds  = 1209600
  max_message_size           = var.max_message_size
  kms_master_key_id          = var.kms_key_arn
  sqs_managed_sse_enabled    = var.kms_key_arn == null ? true : null
  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_sqs_queue_policy" "delay_queue_policy" {
  queue_url = aws_sqs_queue.delay_queue.url
  policy = jsonencode({
    Statement = [
      {
        Action = "sqs:*"
        Condition = {
          Bool = {
            "aws:SecureTransport" = "false"
          }
        }
        Effect = "Deny"
        Principal = {
          AWS = "*"
        }
        Resource = aws_sqs_queue.delay_queue.arn
      },
    ]
    Version = "2012-10-17"
  })
}

resource "aws_sqs_queue" "error_queue" {
  name                      = "${var.endpoint}-delay-error"
  message_retention_seconds = 1209600
  max_message_size          = var.max_message_size
  kms_master_key_id         = var.kms_key_arn
  sqs_managed_sse_enabled   = var.kms_key_arn == null ? true : null
  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_sqs_queue_policy" "error_queue_policy" {
  queue_url = aws_sqs_queue.error_queue.url
  policy = jsonencode({
    Statement = [
      {
        Action = "sqs:*"
        Condition = {
          Bool = {
            "aws:SecureTransport" = "false"
          }
        }
        Effect = "Deny"
        Principal = {
          AWS = "*"
        }
        Resource = aws_sqs_queue.error_queue.arn
      },
    ]
    Version = "2012-10-17"
  })
}

resource "aws_dynamodb_table" "store_table" {
  name         = "${var.endpoint}.parked"
  billing_mode = "PAY_PER_REQUEST"
  table_class  = "STANDARD"
  hash_key     = "p"
  range_key    = "s"
  attribute {
    name = "p"
    type = "S"
  }
  attribute {
    name = "s"
    type = "S"
  }
  ttl {
    attribute_name = "t"
    enabled        = true
  }
  point_in_time_recovery {
    enabled = true
  }
  server_side_encryption {
    enabled     = true
    kms_key_arn = var.kms_key_arn
  }
  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_cloudwatch_log_group" "store_dispatcher_log" {
  name              = "/sqsdelay/${var.endpoint}/store_dispatcher"
  retention_in_days = var.log_retention_days
}

resource "aws_iam_role" "store_dispatcher_role" {
  assume_role_policy = jsonencode({
    Statement = [
      {
        Action = "sts:AssumeRole"
        Effect = "Allow"
        Principal = {
          Service = "lambda.amazonaws.com"
        }
      },
    ]
    Version = "2012-10-17"
  })
  permissions_boundary = var.permissions_boundary_arn
}

resource "aws_iam_role_policy" "store_dispatcher_role" {
  name = "Dispatcher"
  role = aws_iam_role.store_dispatcher_role.name
  policy = jsonencode({
    Statement = [
      {
        Action = [
          "dynamodb:DeleteItem",
          "dynamodb:DescribeTable",
          "dynamodb:PutItem",
          "dynamodb:Query",
          "dynamodb:UpdateItem",
        ]
        Effect   = "Allow"
        Resource = aws_dynamodb_table.store_table.arn
        Sid      = "Lease"
      },
      {
        Action = ["sqs:GetQueueUrl", "sqs:SendMessage"]
        Effect = "Allow"
        Resource = [
          aws_sqs_queue.error_queue.arn,
          "arn:${data.aws_partition.this.partition}:sqs:${data.aws_region.this.name}:${data.aws_caller_identity.this.account_id}:${var.endpoint}",
        ]
        Sid = "Release"
      },
      {
        Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
        Effect   = "Allow"
        Resource = aws_cloudwatch_log_group.store_dispatcher_log.arn
        Sid      = "Log"
      },
    ]
    Version = "2012-10-17"
  })
}

resource "aws_iam_role_policy" "store_dispatcher_role_default_policy" {
  count = var.kms_key_arn == null ? 0 : 1
  name  = "Key"
  role  = aws_iam_role.store_dispatcher_role.name
  policy = jsonencode({
    Statement = [
      {
        Action = [
          "kms:Decrypt",
          "kms:DescribeKey",
          "kms:Encrypt",
          "kms:GenerateDataKey",
          "kms:ReEncryptFrom",
          "kms:ReEncryptTo",
        ]
        Effect   = "Allow"
        Resource = var.kms_key_arn
      },
    ]
    Version = "2012-10-17"
  })
}

resource "aws_lambda_function" "store_dispatcher_function" {
  function_name                  = "${var.endpoint}-dispatcher"
  description                    = "Releases delayed messages of ${var.endpoint} from their store (sqsdelay)"
  filename                       = var.dispatcher_archive
  source_code_hash               = filebase64sha256(var.dispatcher_archive)
  handler                        = "sqsdelay.lambdas.dispatcher.handler.handler"
  runtime                        = var.runtime
  architectures                  = ["arm64"]
  memory_size                    = 1769
  timeout                        = 170
  reserved_concurrent_executions = 3
  role                           = aws_iam_role.store_dispatcher_role.arn
  environment {
    variables = {
      SQSDELAY_ENDPOINT = var.endpoint
      SQSDELAY_STORE    = "dynamodb://${aws_dynamodb_table.store_table.name}"
    }
  }
  logging_config {
    log_format       = "JSON"
    log_group        = aws_cloudwatch_log_group.store_dispatcher_log.name
    system_log_level = "WARN"
  }
  depends_on = [aws_iam_role_policy.store_dispatcher_role]
}

resource "aws_lambda_function_event_invoke_config" "store_dispatcher_function_event_invoke_config" {
  function_name                = aws_lambda_function.store_dispatcher_function.function_name
  maximum_event_age_in_seconds = 60
  maximum_retry_attempts       = 0
}

resource "aws_cloudwatch_event_rule" "store_dispatcher_schedule" {
  description         = "Runs the dispatcher of ${var.endpoint} (sqsdelay)"
  schedule_expression = "rate(1 minute)"
  state               = "ENABLED"
}

resource "aws_cloudwatch_event_target" "store_dispatcher_schedule" {
  rule = aws_cloudwatch_event_rule.store_dispatcher_schedule.name
  arn  = aws_lambda_function.store_dispatcher_function.arn
  retry_policy {
    maximum_event_age_in_seconds = 60
    maximum_retry_attempts       = 0
  }
}

resource "aws_lambda_permission" "store_dispatcher_schedule_permission" {
  action        = "lambda:InvokeFunction"
  function_name = aws_lambda_function.store_dispatcher_function.arn
  principal     = "events.amazonaws.com"
  source_arn    = aws_cloudwatch_event_rule.store_dispatcher_schedule.arn
}

resource "aws_cloudwatch_metric_alarm" "store_alarms_overdue" {
  alarm_name        = "${var.endpoint}-delay: overdue"
  alarm_description = "A message is due but still in the store, or the dispatcher no longer runs"
  namespace         = "sqsdelay"
  metric_name       = "Overdue"
  dimensions = {
    service = var.endpoint
  }
  statistic           = "Maximum"
  period              = 300
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = 120000
  treat_missing_data  = "breaching"
  alarm_actions       = var.alarm_topic_arn == null ? null : [var.alarm_topic_arn]
}

resource "aws_cloudwatch_metric_alarm" "store_alarms_dispatcher_errors" {
  alarm_name        = "${var.endpoint}-delay: dispatcher-errors"
  alarm_description = "The dispatcher raised or timed out; the next run continues"
  namespace         = "AWS/Lambda"
  metric_name       = "Errors"
  dimensions = {
    FunctionName = aws_lambda_function.store_dispatcher_function.function_name
  }
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arn == null ? null : [var.alarm_topic_arn]
}

resource "aws_cloudwatch_metric_alarm" "store_alarms_dispatcher_throttles" {
  alarm_name        = "${var.endpoint}-delay: dispatcher-throttles"
  alarm_description = "The dispatcher is throttled: a run before it has not ended"
  namespace         = "AWS/Lambda"
  metric_name       = "Throttles"
  dimensions = {
    FunctionName = aws_lambda_function.store_dispatcher_function.function_name
  }
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arn == null ? null : [var.alarm_topic_arn]
}

resource "aws_cloudwatch_log_group" "delay_consumer_log" {
  name              = "/sqsdelay/${var.endpoint}/delay_consumer"
  retention_in_days = var.log_retention_days
}

resource "aws_iam_role" "delay_consumer_role" {
  assume_role_policy = jsonencode({
    Statement = [
      {
        Action = "sts:AssumeRole"
        Effect = "Allow"
        Principal = {
          Service = "lambda.amazonaws.com"
        }
      },
    ]
    Version = "2012-10-17"
  })
  permissions_boundary = var.permissions_boundary_arn
}

resource "aws_iam_role_policy" "delay_consumer_role" {
  name = "DelayConsumer"
  role = aws_iam_role.delay_consumer_role.name
  policy = jsonencode({
    Statement = [
      {
        Action = ["sqs:GetQueueUrl", "sqs:SendMessage"]
        Effect = "Allow"
        Resource = [
          aws_sqs_queue.delay_queue.arn,
          aws_sqs_queue.error_queue.arn,
          "arn:${data.aws_partition.this.partition}:sqs:${data.aws_region.this.name}:${data.aws_caller_identity.this.account_id}:${var.endpoint}",
        ]
        Sid = "Relay"
      },
      {
        Action = [
          "sqs:ChangeMessageVisibility",
          "sqs:DeleteMessage",
          "sqs:GetQueueAttributes",
          "sqs:ReceiveMessage",
        ]
        Effect   = "Allow"
        Resource = aws_sqs_queue.delay_queue.arn
        Sid      = "Consume"
      },
      {
        Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
        Effect   = "Allow"
        Resource = aws_cloudwatch_log_group.delay_consumer_log.arn
        Sid      = "Log"
      },
      {
        Action = [
          "dynamodb:BatchGetItem",
          "dynamodb:ConditionCheckItem",
          "dynamodb:DeleteItem",
          "dynamodb:PutItem",
          "dynamodb:Query",
        ]
        Effect   = "Allow"
        Resource = aws_dynamodb_table.store_table.arn
        Sid      = "Park"
      },
    ]
    Version = "2012-10-17"
  })
}

resource "aws_iam_role_policy" "delay_consumer_role_default_policy" {
  count = var.kms_key_arn == null ? 0 : 1
  name  = "Key"
  role  = aws_iam_role.delay_consumer_role.name
  policy = jsonencode({
    Statement = [
      {
        Action = [
          "kms:Decrypt",
          "kms:DescribeKey",
          "kms:Encrypt",
          "kms:GenerateDataKey",
          "kms:ReEncryptFrom",
          "kms:ReEncryptTo",
        ]
        Effect   = "Allow"
        Resource = var.kms_key_arn
      },
    ]
    Version = "2012-10-17"
  })
}

resource "aws_lambda_function" "delay_consumer_function" {
  function_name    = "${var.endpoint}-delay-consumer"
  description      = "Relays delayed messages of ${var.endpoint} (sqsdelay)"
  filename         = var.delay_consumer_archive
  source_code_hash = filebase64sha256(var.delay_consumer_archive)
  handler          = "sqsdelay.lambdas.delay_consumer.handler.handler"
  runtime          = var.runtime
  architectures    = ["arm64"]
  memory_size      = var.memory_mb
  timeout          = 30
  role             = aws_iam_role.delay_consumer_role.arn
  environment {
    variables = {
      SQSDELAY_ENDPOINT    = var.endpoint
      SQSDELAY_HOP_SECONDS = "900"
      SQSDELAY_STORE       = "dynamodb://${aws_dynamodb_table.store_table.name}"
    }
  }
  logging_config {
    log_format       = "JSON"
    log_group        = aws_cloudwatch_log_group.delay_consumer_log.name
    system_log_level = "WARN"
  }
  depends_on = [aws_iam_role_policy.delay_consumer_role]
}

resource "aws_lambda_function_recursion_config" "delay_consumer_function" {
  function_name  = aws_lambda_function.delay_consumer_function.function_name
  recursive_loop = "Allow"
}

resource "aws_lambda_event_source_mapping" "delay_consumer_event_source" {
  event_source_arn        = aws_sqs_queue.delay_queue.arn
  function_name           = aws_lambda_function.delay_consumer_function.function_name
  batch_size              = 10
  function_response_types = ["ReportBatchItemFailures"]
  scaling_config {
    maximum_concurrency = var.max_concurrency
  }
}

resource "aws_cloudwatch_metric_alarm" "alarms_error_queue_not_empty" {
  alarm_name        = "${var.endpoint}-delay: error-queue-not-empty"
  alarm_description = "Messages that could not be delivered wait in the error queue"
  namespace         = "AWS/SQS"
  metric_name       = "ApproximateNumberOfMessagesVisible"
  dimensions = {
    QueueName = aws_sqs_queue.error_queue.name
  }
  statistic           = "Maximum"
  period              = 300
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arn == null ? null : [var.alarm_topic_arn]
}

resource "aws_cloudwatch_metric_alarm" "alarms_oldest_message" {
  alarm_name        = "${var.endpoint}-delay: oldest-message"
  alarm_description = "A message has been in the delay queue for more than one hop and a margin: the relay is late, or fails on it"
  namespace         = "AWS/SQS"
  metric_name       = "ApproximateAgeOfOldestMessage"
  dimensions = {
    QueueName = aws_sqs_queue.delay_queue.name
  }
  statistic           = "Maximum"
  period              = 300
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = 1260
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arn == null ? null : [var.alarm_topic_arn]
}

resource "aws_cloudwatch_metric_alarm" "alarms_function_errors" {
  alarm_name        = "${var.endpoint}-delay: function-errors"
  alarm_description = "The delay consumer raised or timed out; its batch comes back"
  namespace         = "AWS/Lambda"
  metric_name       = "Errors"
  dimensions = {
    FunctionName = aws_lambda_function.delay_consumer_function.function_name
  }
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arn == null ? null : [var.alarm_topic_arn]
}

resource "aws_cloudwatch_metric_alarm" "alarms_function_throttles" {
  alarm_name        = "${var.endpoint}-delay: function-throttles"
  alarm_description = "The delay consumer is throttled: the account has no concurrency left"
  namespace         = "AWS/Lambda"
  metric_name       = "Throttles"
  dimensions = {
    FunctionName = aws_lambda_function.delay_consumer_function.function_name
  }
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arn == null ? null : [var.alarm_topic_arn]
}

resource "aws_cloudwatch_metric_alarm" "alarms_recursion_drops" {
  alarm_name        = "${var.endpoint}-delay: recursion-drops"
  alarm_description = "Lambda stops the relay as a recursive loop; configure it to allow recursion"
  namespace         = "AWS/Lambda"
  metric_name       = "RecursiveInvocationsDropped"
  dimensions = {
    FunctionName = aws_lambda_function.delay_consumer_function.function_name
  }
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arn == null ? null : [var.alarm_topic_arn]
}

resource "aws_cloudwatch_dashboard" "dashboard" {
  dashboard_name = "sqsdelay-${var.endpoint}-${data.aws_region.this.name}"
  dashboard_body = "{\"widgets\":[{\"type\":\"alarm\",\"width\":24,\"height\":3,\"x\":0,\"y\":0,\"properties\":{\"title\":\"Alarms\",\"alarms\":[\"${aws_cloudwatch_metric_alarm.alarms_error_queue_not_empty.arn}\",\"${aws_cloudwatch_metric_alarm.alarms_oldest_message.arn}\",\"${aws_cloudwatch_metric_alarm.alarms_function_errors.arn}\",\"${aws_cloudwatch_metric_alarm.alarms_function_throttles.arn}\",\"${aws_cloudwatch_metric_alarm.alarms_recursion_drops.arn}\",\"${aws_cloudwatch_metric_alarm.store_alarms_overdue.arn}\",\"${aws_cloudwatch_metric_alarm.store_alarms_dispatcher_errors.arn}\",\"${aws_cloudwatch_metric_alarm.store_alarms_dispatcher_throttles.arn}\"]}},{\"type\":\"metric\",\"width\":12,\"height\":6,\"x\":0,\"y\":3,\"properties\":{\"view\":\"timeSeries\",\"title\":\"Pending messages\",\"region\":\"${data.aws_region.this.name}\",\"metrics\":[[\"AWS/SQS\",\"ApproximateNumberOfMessagesDelayed\",\"QueueName\",\"${aws_sqs_queue.delay_queue.name}\",{\"label\":\"waiting\",\"stat\":\"Maximum\"}],[\"AWS/SQS\",\"ApproximateNumberOfMessagesVisible\",\"QueueName\",\"${aws_sqs_queue.delay_queue.name}\",{\"label\":\"to be relayed\",\"stat\":\"Maximum\"}],[\"AWS/SQS\",\"ApproximateNumberOfMessagesNotVisible\",\"QueueName\",\"${aws_sqs_queue.delay_queue.name}\",{\"label\":\"in hand\",\"stat\":\"Maximum\"}]],\"yAxis\":{}}},{\"type\":\"metric\",\"width\":12,\"height\":6,\"x\":12,\"y\":3,\"properties\":{\"view\":\"timeSeries\",\"title\":\"Hops and hand-overs\",\"region\":\"${data.aws_region.this.name}\",\"metrics\":[[\"sqsdelay\",\"Hops\",\"service\",\"${var.endpoint}\",{\"label\":\"Hops\",\"period\":60,\"stat\":\"Sum\"}],[\"sqsdelay\",\"HandedOver\",\"service\",\"${var.endpoint}\",{\"label\":\"HandedOver\",\"period\":60,\"stat\":\"Sum\"}]],\"yAxis\":{}}},{\"type\":\"metric\",\"width\":12,\"height\":6,\"x\":0,\"y\":9,\"properties\":{\"view\":\"timeSeries\",\"title\":\"Lateness\",\"region\":\"${data.aws_region.this.name}\",\"metrics\":[[\"sqsdelay\",\"Lateness\",\"service\",\"${var.endpoint}\",{\"label\":\"p50 (ms)\",\"period\":60,\"stat\":\"p50\"}],[\"sqsdelay\",\"Lateness\",\"service\",\"${var.endpoint}\",{\"label\":\"p99 (ms)\",\"period\":60,\"stat\":\"p99\"}],[\"sqsdelay\",\"Lateness\",\"service\",\"${var.endpoint}\",{\"label\":\"max (ms)\",\"period\":60,\"stat\":\"Maximum\"}]],\"yAxis\":{}}},{\"type\":\"metric\",\"width\":12,\"height\":6,\"x\":12,\"y\":9,\"properties\":{\"view\":\"timeSeries\",\"title\":\"Errors\",\"region\":\"${data.aws_region.this.name}\",\"metrics\":[[\"sqsdelay\",\"Failed\",\"service\",\"${var.endpoint}\",{\"label\":\"Failed\",\"period\":60,\"stat\":\"Sum\"}],[\"sqsdelay\",\"Rejected\",\"service\",\"${var.endpoint}\",{\"label\":\"Rejected\",\"period\":60,\"stat\":\"Sum\"}],[\"AWS/Lambda\",\"Errors\",\"FunctionName\",\"${aws_lambda_function.delay_consumer_function.function_name}\",{\"label\":\"function errors\",\"stat\":\"Sum\"}],[\"AWS/Lambda\",\"Throttles\",\"FunctionName\",\"${aws_lambda_function.delay_consumer_function.function_name}\",{\"label\":\"function throttles\",\"stat\":\"Sum\"}],[\"AWS/SQS\",\"ApproximateNumberOfMessagesVisible\",\"QueueName\",\"${aws_sqs_queue.error_queue.name}\",{\"label\":\"in the error queue\",\"stat\":\"Maximum\"}]],\"yAxis\":{}}},{\"type\":\"metric\",\"width\":12,\"height\":6,\"x\":0,\"y\":15,\"properties\":{\"view\":\"timeSeries\",\"title\":\"Store\",\"region\":\"${data.aws_region.this.name}\",\"metrics\":[[\"sqsdelay\",\"Parked\",\"service\",\"${var.endpoint}\",{\"label\":\"Parked\",\"period\":60,\"stat\":\"Sum\"}],[\"sqsdelay\",\"Cancelled\",\"service\",\"${var.endpoint}\",{\"label\":\"Cancelled\",\"period\":60,\"stat\":\"Sum\"}],[\"sqsdelay\",\"Released\",\"service\",\"${var.endpoint}\",{\"label\":\"Released\",\"period\":60,\"stat\":\"Sum\"}],[\"sqsdelay\",\"Rejected\",\"service\",\"${var.endpoint}\",{\"label\":\"Rejected\",\"period\":60,\"stat\":\"Sum\"}],[\"sqsdelay\",\"Failed\",\"service\",\"${var.endpoint}\",{\"label\":\"Failed\",\"period\":60,\"stat\":\"Sum\"}],[\"sqsdelay\",\"Held\",\"service\",\"${var.endpoint}\",{\"label\":\"Held\",\"period\":60,\"stat\":\"Sum\"}],[\"AWS/Lambda\",\"Errors\",\"FunctionName\",\"${aws_lambda_function.store_dispatcher_function.function_name}\",{\"label\":\"dispatcher errors\",\"stat\":\"Sum\"}]],\"yAxis\":{}}},{\"type\":\"metric\",\"width\":12,\"height\":6,\"x\":12,\"y\":15,\"properties\":{\"view\":\"timeSeries\",\"title\":\"Due in the store\",\"region\":\"${data.aws_region.this.name}\",\"metrics\":[[\"sqsdelay\",\"DispatchLateness\",\"service\",\"${var.endpoint}\",{\"label\":\"released late (ms)\",\"period\":60,\"stat\":\"Maximum\"}],[\"sqsdelay\",\"Overdue\",\"service\",\"${var.endpoint}\",{\"label\":\"still in the store (ms)\",\"period\":60,\"stat\":\"Maximum\"}]],\"yAxis\":{}}}]}"
}
