# What the other scripts read first (. scripts/usage.sh): --help as the first argument prints the comment at the top of a script, and
# wrong usage ends with 2.

script=scripts/${0##*/}
usage() { sed -n '2,${/^#/!q;s/^# \{0,1\}//p}' "$0"; }
wrong() {
  echo "$script: $*; $script --help says what it takes" >&2
  exit 2
}
case "${1:-}" in -h | --help) usage; exit 0 ;; esac
