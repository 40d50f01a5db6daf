"""sqsdelay on Spark. Importing this does not import pyspark."""
