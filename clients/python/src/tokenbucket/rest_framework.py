"""Throttles of Django REST framework: see `TokenBucketThrottle`."""

from .adapters.rest_framework import AnonRateThrottle as AnonRateThrottle
from .adapters.rest_framework import ScopedRateThrottle as ScopedRateThrottle
from .adapters.rest_framework import TokenBucketThrottle as TokenBucketThrottle
from .adapters.rest_framework import UserRateThrottle as UserRateThrottle
from .adapters.rest_framework import limiter as limiter
