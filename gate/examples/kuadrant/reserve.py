"""Reserves tokens, and commits twice: what a gateway asks of the gate."""

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

SERVICE = "kuadrant.service.ratelimit.v1.RateLimitService"
channel = grpc.insecure_channel("127.0.0.1:8081")
pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
methods = pool.FindServiceByName(SERVICE).methods_by_name


def call(name, **fields):
    asks, replies = (GetMessageClass(kind) for kind in (methods[name].input_type, methods[name].output_type))
    send = channel.unary_unary(f"/{SERVICE}/{name}", asks.SerializeToString, replies.FromString)
    return send(asks(**fields))


limits = {"domain": "llm", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]}
reserved = call("Reserve", amount=5000, ttl={"seconds": 30}, **limits)
print(reserved.code, reserved.reservation_id)  # 1 is OK, 2 is OVER_LIMIT
print(call("Commit", reservation_id=reserved.reservation_id, actual_amount=1800, **limits))
print(call("Commit", reservation_id=reserved.reservation_id, actual_amount=1800, **limits))
