"""sqsdelay on AWS: CDK constructs, and what the functions that they deploy are called and made of."""

from typing import TYPE_CHECKING

from sqsdelay.core import on_first_use

if TYPE_CHECKING:
    from sqsdelay.cdk.functions import FunctionSettings
    from sqsdelay.cdk.unrestricted_delay import UnrestrictedDelay

__all__ = ["FunctionSettings", "UnrestrictedDelay"]

# Load on first use: functions and builds need the names beside the constructs, and have no CDK.
__getattr__ = on_first_use(
    __name__,
    {
        "sqsdelay.cdk.functions": "FunctionSettings",
        "sqsdelay.cdk.unrestricted_delay": "UnrestrictedDelay",
    },
)
