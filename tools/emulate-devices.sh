#!/usr/bin/env bash
# Several slow drives on a machine with one, to try striping out: files behind loop
# devices, each held to a bandwidth (and IOPS) by the kernel's blkio controller.
set -euo pipefail

usage() {
	cat <<'TEXT'
usage: emulate-devices.sh up COUNT [options]   make COUNT devices and print their paths
       emulate-devices.sh run COMMAND...       run COMMAND held to the devices' limits
       emulate-devices.sh list                 print the paths of what is up
       emulate-devices.sh down                 remove what up made, and nothing else

options of up:
  --bytes-per-second N   each device's bandwidth, reads and writes apart (104857600)
  --iops N               each device's operations per second (0: no limit)
  --size N[K|M|G]        each device's size (1G)
  --dir D                where the backing files lie (/var/tmp/skep-emulated); on tmpfs,
                         such as /dev/shm/x, the drive beneath plays no part

Needs root, loop devices, and the cgroup v1 blkio controller. Limits apply to what runs
under `run` only. Requests of up to 512 KiB are charged as expected; larger ones may be
split or charged twice by the kernel, so measure one device before speaking of many.
Set SKEP_EMULATED_DIR for run, list and down when up was given --dir.

example:
  tools/emulate-devices.sh up 8
  tools/emulate-devices.sh run bin/skep bench restore --file-devices 1,8 \
      --device "$(tools/emulate-devices.sh list | paste -sd,)"
  tools/emulate-devices.sh down
TEXT
}

die() { echo "emulate-devices.sh: $*" >&2; exit 1; }
bad() { echo "emulate-devices.sh: $*" >&2; usage >&2; exit 2; }

controller=/sys/fs/cgroup/blkio

# use DIR: where the devices' files lie. Each such directory has a cgroup of its own, so
# that two sets of devices do not meet.
use() {
	state=$1
	group=$controller/skep-emulated-$(printf %s "$state" | cksum | cut -d' ' -f1)
}
use "$(realpath -m -- "${SKEP_EMULATED_DIR:-/var/tmp/skep-emulated}")"

# limit DEVICE BYTES IOPS: 0 takes a limit away.
limit() {
	local number op
	number=$(cat "/sys/block/${1##*/}/dev")
	for op in read write; do
		echo "$number $2" >"$group/blkio.throttle.${op}_bps_device"
		echo "$number $3" >"$group/blkio.throttle.${op}_iops_device"
	done
}

need_root() { [[ $(id -u) == 0 ]] || die "must run as root: loop devices and limits belong to the system"; }
number() { [[ $2 =~ ^[0-9]+$ ]] || bad "$1 is $2, must be a number"; }

# The file of devices has a line each: loop device, backing file.
down() {
	[[ -f $state/devices ]] || die "nothing is up in $state"
	local device image left=0 running
	running=$(cat "$group/cgroup.procs" 2>/dev/null || true)
	[[ -z $running ]] || die "processes still run on the devices: ${running//$'\n'/ }; end them first"
	while read -r device image; do
		# Only a loop device that still shows our file is ours.
		if [[ $(losetup --noheadings --output BACK-FILE "$device" 2>/dev/null || true) == "$image" ]]; then
			limit "$device" 0 0 || true
			losetup --detach "$device" || { left=1; echo "$device is in use" >&2; continue; }
		fi
		rm -f -- "$image"
	done <"$state/devices"
	[[ $left == 0 ]] || die "end what uses the devices, then run down again"
	rm -f -- "$state/devices"
	rmdir -- "$state" || true
	rmdir "$group" 2>/dev/null || true
}

up() {
	local count=${1:-} bytes=104857600 iops=0 size=1G
	[[ -n $count ]] || bad "up needs a COUNT"
	shift
	number COUNT "$count"
	((count >= 1 && count <= 64)) || bad "COUNT is $count, must be 1 to 64"
	while (($#)); do
		[[ $# -ge 2 ]] || bad "$1 needs a value"
		case $1 in
		--bytes-per-second) bytes=$2 && number "$1" "$bytes" ;;
		--iops) iops=$2 && number "$1" "$iops" ;;
		--size) size=$2 && { [[ $size =~ ^[0-9]+[KMG]?$ ]] || bad "--size is $size, must be a number with K, M or G"; } ;;
		--dir) use "$(realpath -m -- "$2")" ;;
		*) bad "unknown option $1" ;;
		esac
		shift 2
	done
	[[ -d $controller ]] || die "no $controller: this kernel has no cgroup v1 blkio controller, so devices cannot be held to a speed"
	[[ ! -e $state/devices ]] || die "devices are up already in $state; run down first"
	mkdir -p "$state" "$group"
	: >"$state/devices"
	image=
	trap 'echo "emulate-devices.sh: failed; taking back what was made" >&2; trap - EXIT; [[ -z $image ]] || grep -qF " $image" "$state/devices" || rm -f -- "$image"; down' EXIT
	local i device
	for ((i = 0; i < count; i++)); do
		image=$state/drive-$i
		# Written in full: first writes into unwritten extents would be slower.
		head -c "$size" /dev/zero >"$image"
		device=$(losetup --find --show --direct-io=on "$image")
		echo "$device $image" >>"$state/devices"
		limit "$device" "$bytes" "$iops"
		echo "$device"
	done
	trap - EXIT
	echo "limits hold under: $0 run COMMAND" >&2
}

case ${1:-} in
up) need_root && shift && up "$@" ;;
run)
	need_root
	shift
	[[ $# -ge 1 ]] || bad "run needs a COMMAND"
	[[ -d $group ]] || die "nothing is up"
	echo $$ >"$group/cgroup.procs"
	exec "$@"
	;;
list) [[ -f $state/devices ]] || die "nothing is up in $state"; cut -d' ' -f1 "$state/devices" ;;
down) need_root && down ;;
-h | --help | help) usage ;;
*) usage >&2; exit 2 ;;
esac
