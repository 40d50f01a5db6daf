# An endpoint's unrestricted delays, by the CloudFormation template of the release.

terraform {
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

variable "endpoint" {
  description = "Name of the destination: a standard queue of the provider's account and region"
  type        = string
}

variable "release" {
  description = "Folder with functions.zip and the templates, as `make templates` writes it"
  type        = string
}

variable "template" {
  description = "sqsdelay, or sqsdelay-dynamodb with a store to park in"
  type        = string
  default     = "sqsdelay"
}

variable "code_bucket" {
  description = "S3 bucket for the functions' archive"
  type        = string
}

variable "alarm_topic_arn" {
  description = "SNS topic that every alarm notifies"
  type        = string
  default     = ""
}

resource "aws_s3_object" "functions" {
  bucket = var.code_bucket
  key    = "sqsdelay/${filemd5("${var.release}/functions.zip")}.zip"
  source = "${var.release}/functions.zip"
}

resource "aws_cloudformation_stack" "delay" {
  name          = "sqsdelay-${replace(var.endpoint, "_", "-")}"
  template_body = file("${var.release}/${var.template}.template.json")
  capabilities  = ["CAPABILITY_IAM"]
  parameters = {
    Endpoint      = var.endpoint
    CodeBucket    = aws_s3_object.functions.bucket
    CodeKey       = aws_s3_object.functions.key
    AlarmTopicArn = var.alarm_topic_arn
  }
}

output "outputs" {
  description = "DelayQueueUrl, ErrorQueueUrl, FunctionName; StoreUrl with a store"
  value       = aws_cloudformation_stack.delay.outputs
}
