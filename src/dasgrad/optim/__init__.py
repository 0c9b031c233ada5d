"""The optimizer family of Algorithm 1 and the schedules the paper assumes."""

from dasgrad.optim.dasgrad import DASGrad
from dasgrad.optim.schedules import Beta1Decay, InverseSqrtLR

__all__ = ["Beta1Decay", "DASGrad", "InverseSqrtLR"]
