# Made by `python -m infra.terraform` from the construct: change that, not this.

output "delay_queue_url" {
  value = aws_sqs_queue.delay_queue.url
}

output "error_queue_url" {
  value = aws_sqs_queue.error_queue.url
}

output "function_name" {
  value = aws_lambda_function.delay_consumer_function.function_name
}
