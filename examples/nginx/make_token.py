#!/usr/bin/env python3
"""Prints a token to try the gateway with: the claims given as JSON, signed (HS256) with JWT_SECRET.

    JWT_SECRET=... ./make_token.py '{"sub": "alice", "plan": "enterprise"}'
"""
import base64
import hashlib
import hmac
import json
import os
import sys


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed_token(claims: dict, secret: str, header: dict | None = None) -> str:
    header = header or {"alg": "HS256", "typ": "JWT"}
    signed = ".".join(base64url(json.dumps(part).encode()) for part in (header, claims))
    signature = hmac.new(secret.encode(), signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64url(signature)}"


if __name__ == "__main__":
    if len(sys.argv) != 2 or not os.environ.get("JWT_SECRET"):
        sys.exit("usage: JWT_SECRET=... make_token.py CLAIMS_AS_JSON")
    print(signed_token(json.loads(sys.argv[1]), os.environ["JWT_SECRET"]))
