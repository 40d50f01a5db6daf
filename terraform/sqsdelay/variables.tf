# Made by `python -m infra.terraform` from the construct: change that, not this.

variable "endpoint" {
  description = "Name of the destination: a standard queue of this account and region"
  type        = string
}

variable "alarm_topic_arn" {
  description = "SNS topic that every alarm notifies"
  type        = string
  default     = null
}

variable "kms_key_arn" {
  description = "KMS key for the queues and the table; the services' own when empty"
  type        = string
  default     = null
}

variable "permissions_boundary_arn" {
  description = "Permissions boundary of every role"
  type        = string
  default     = null
}

variable "memory_mb" {
  description = "Memory of the delay consumer"
  type        = number
  default     = 256
}

variable "max_concurrency" {
  description = "Batches of messages in hand at once"
  type        = number
  default     = 10
}

variable "log_retention_days" {
  description = "How long the functions' logs are kept"
  type        = number
  default     = 30
}

variable "delay_consumer_archive" {
  description = "Path of delay_consumer.zip, which `sqsdelay functions` writes"
  type        = string
}

variable "runtime" {
  description = "Runtime of the functions; Python 3.11 or newer"
  type        = string
  default     = "python3.14"
}

variable "max_message_size" {
  description = "Bytes that a message may have; AWS provider 5 takes no more than 262144"
  type        = number
  default     = 1048576
}
