import tests.services.quick_jsii  # noqa: F401
