#!/bin/sh
# Runs the compiler with the flags of WEIR_REMAP. Cargo would hash flags of its own into the names of
# symbols, and these flags contain paths of this machine.
# shellcheck disable=SC2086
exec "$@" $WEIR_REMAP
