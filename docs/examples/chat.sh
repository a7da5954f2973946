#!/bin/sh
# A chat in the terminal, with nothing but curl and jq:  chat.sh [URL] [MODEL]
# The key, if the server asks for one, is in LLAMA_API_KEY. An empty line or Ctrl-D ends it.
set -eu
url=${1:-http://127.0.0.1:8080}
model=${2:-}
messages='[]'

while printf '> ' && IFS= read -r line && [ -n "$line" ]; do
    messages=$(printf '%s' "$messages" | jq -c --arg text "$line" '. + [{role: "user", content: $text}]')
    request=$(printf '%s' "$messages" | jq -c --arg model "$model" \
        '{messages: ., stream: true} + (if $model == "" then {} else {model: $model} end)')
    answer=$(printf '%s' "$request" |
        curl --silent --show-error --no-buffer "$url/v1/chat/completions" \
            --header "Authorization: Bearer ${LLAMA_API_KEY:-none}" \
            --header 'Content-Type: application/json' --data-binary @- |
        sed -n -e 's/^data: {/{/p' -e '/^{"error"/p' |
        jq --unbuffered --join-output '.error.message // .choices[0].delta.content // empty' |
        tee /dev/stderr)
    printf '\n'
    messages=$(printf '%s' "$messages" | jq -c --arg text "$answer" '. + [{role: "assistant", content: $text}]')
done
