package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What a new machine does at its first start, after the package is installed: each line must succeed.
const firstStart = `set -ex
systemctl enable --now skep
systemctl is-active skep
skep status --wait ready
skep put greeting --text hello
systemctl show -P User skep | grep -x skep
test "$(stat -c %U /var/lib/skep)" = skep
: its settings are read again
systemctl reload skep
skep get greeting | grep -x hello
: killed, it is started again, and has what it had
was=$(systemctl show -P MainPID skep)
sleep 2
kill -9 "$was"
skep status --wait ready
test "$(systemctl show -P MainPID skep)" != "$was"
test "$(systemctl show -P NRestarts skep)" = 1
skep get greeting | grep -x hello
: stopped, it has drained
systemctl stop skep
test "$(systemctl show -P Result skep)" = success
: settings that are wrong are said once, and not tried for ever
echo 'nonesuch: 1' >>/etc/skep/skep.yaml
! systemctl start skep
sleep 5
test "$(systemctl show -P ExecMainStatus skep)" = 2
test "$(systemctl show -P ActiveState skep)" = failed
journalctl -u skep --no-pager | grep 'no setting nonesuch'
sed -i '$d' /etc/skep/skep.yaml
systemctl reset-failed skep
systemctl start skep
skep get greeting | grep -x hello
echo all of it was done
`

// bootInstalls installs the package in a clean system with a kernel, starts that in a virtual machine, and has systemd
// run the unit as it is.
func bootInstalls(t *testing.T, deb string) {
	rooted(t)
	if runtime.GOARCH != "amd64" {
		t.Skip("the virtual machine here is one of amd64")
	}
	for _, c := range []string{"qemu-system-x86_64", "mke2fs"} {
		if _, err := exec.LookPath(c); err != nil {
			t.Skipf("%s is not installed: no machine to start", c)
		}
	}
	dir := cleanRoot(t, "systemd-sysv", "linux-image-cloud-amd64", "initramfs-tools", "ca-certificates")
	admin := place{root: dir, dir: "/"}
	do := func(line string) {
		t.Helper()
		_, err := admin.shell(t, []string{"DEBIAN_FRONTEND=noninteractive"}, line)
		require.NoError(t, err, line)
	}
	_, err := output(".", nil, "cp", deb, filepath.Join(dir, "tmp"))
	require.NoError(t, err)
	do("cd /tmp && apt-get install -y --no-install-recommends ./skep_*.deb && rm skep_*.deb")
	put := func(name, text string, mode os.FileMode) {
		t.Helper()
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), mode))
	}
	put("usr/local/sbin/first-start", firstStart, 0o755)
	put("etc/systemd/system/first-start.service", "[Unit]\nAfter=multi-user.target\n[Service]\nType=exec\n"+
		"ExecStart=/bin/sh -c 'bash /usr/local/sbin/first-start >/dev/ttyS0 2>&1; journalctl -u skep --no-pager -n 30 >/dev/ttyS0; "+
		"systemctl poweroff'\n[Install]\nWantedBy=multi-user.target\n", 0o644)
	do("systemctl enable first-start && systemctl mask serial-getty@ttyS0") // a getty hangs up who writes there
	disk := filepath.Join(t.TempDir(), "disk")
	// /proc of the clean root is a mounted one.
	made := filepath.Join(t.TempDir(), "made")
	require.NoError(t, os.Mkdir(made, 0o755))
	_, err = output(dir, nil, "cp", "-a", "--one-file-system", ".", made)
	require.NoError(t, err)
	_, err = output(".", nil, "mke2fs", "-q", "-t", "ext4", "-d", made, disk, "4G")
	require.NoError(t, err)
	boot := func(what string) string {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(dir, "boot", what))
		require.NoError(t, err)
		require.Len(t, found, 1)
		return found[0]
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	said, err := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-m", "2G", "-smp", "2",
		"-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot", "-nic", "none",
		"-kernel", boot("vmlinuz-*"), "-initrd", boot("initrd.img-*"),
		"-append", "root=/dev/vda rw console=ttyS0 panic=-1 quiet",
		"-drive", "file="+disk+",if=virtio,format=raw,cache=unsafe").CombinedOutput()
	require.NoError(t, err, "%s", said)
	require.Contains(t, strings.ReplaceAll(string(said), "\r", ""), "\nall of it was done\n", "%s", said)
}
