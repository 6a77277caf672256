#!/bin/bash
set -euo pipefail
port=${REDIS_PORT:-6379}

take() {
    # -e: an error sets the exit code too.
    redis-cli -e -p "$port" TB.TAKE user:42 5 5/10s
}

reply=$(take)
mapfile -t decision <<< "$reply"
echo "allowed=${decision[0]} remaining=${decision[1]} retry_after_ms=${decision[2]} reset_after_ms=${decision[3]}"
