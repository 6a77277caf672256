#!/usr/bin/env bash
# run.sh PORT MODULE [SERVER]   Runs a server with the module in the foreground.
set -euo pipefail
port=$1 module=$2 server=${3:-}
here=$(cd "$(dirname "$0")/.." && pwd)

if [ -z "$server" ] && ! server=$(command -v redis-server); then
    # Debian's redis-tools has the server under another name. The program acts by the name it is called by.
    mkdir -p "$here/target"
    ln -sf "$(command -v redis-check-rdb)" "$here/target/redis-server"
    server=$here/target/redis-server
fi

data=$here/target/run
mkdir -p "$data"
cat <<TEXT

$("$server" --version | cut -d ' ' -f 1-3) on port $port, data in target/run, Ctrl-C ends it. Try in another terminal:

  redis-cli -p $port TB.TAKE user:1 10 100/m       # 10 at once, 100 a minute: 1 = allowed, 9 left
  redis-cli -p $port TB.TAKE user:1 10 100/m 20    # costs more than the bucket holds: 0 = denied, -1 = never
  redis-cli -p $port TB.PEEK user:1 10 100/m       # what TB.TAKE would say, and nothing is taken

TEXT
exec "$server" "$here/redis.conf.example" --port "$port" --dir "$data" --loadmodule "$module"
