#!/bin/sh
exec /usr/local/bin/llama-appliance service install
