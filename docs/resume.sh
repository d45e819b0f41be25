#!/bin/bash
# Asks the demonstration server for a countdown, cuts the connection, and resumes the stream by its last event id.
#   bash docs/resume.sh http://127.0.0.1:8080/mcp
set -euo pipefail
url=${1:-http://127.0.0.1:8080/mcp}
json=(-H 'content-type: application/json' -H 'accept: application/json, text/event-stream')

session=$(curl -sf -D - -o /dev/null "${json[@]}" "$url" -d '{"jsonrpc":"2.0","id":1,"method":"initialize","params":
  {"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"resume.sh","version":"1"}}}' |
  tr -d '\r' | sed -n 's/^mcp-session-id: //p')
curl -sf "${json[@]}" -H "mcp-session-id: $session" "$url" -d '{"jsonrpc":"2.0","method":"notifications/initialized"}'

seen=$(timeout 1.2 curl -sN "${json[@]}" -H "mcp-session-id: $session" "$url" -d '{"jsonrpc":"2.0","id":2,
  "method":"tools/call","params":{"name":"countdown","arguments":{"from":4},"_meta":{"progressToken":"p"}}}' || true)
grep -E '^(id|data: .)' <<< "$seen" | grep -B 1 '^data'
echo '--- cut, and resumed 2 seconds later'
sleep 2
last=$(sed -n 's/^id: //p' <<< "$seen" | tail -n 1)
curl -sfN -H 'accept: text/event-stream' -H "mcp-session-id: $session" -H "last-event-id: $last" "$url" | grep -E '^(id|data)'
