package store

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// readOnlyEnv names, in a process of its own, the directory of a store that is to be mounted for reading.
const readOnlyEnv = "SKEP_TEST_READ_ONLY"

// What only looks at a store works on a file system that is mounted for reading, a snapshot say, and still notices
// who has the store open where it can be written to.
func TestAStoreOnAFileSystemForReading(t *testing.T) {
	t.Parallel()
	if dir := os.Getenv(readOnlyEnv); dir != "" {
		lookAtReadOnly(t, dir)
		return
	}
	dir := filepath.Join(t.TempDir(), "store")
	o, _, _ := makeStore(t, dir)
	look := func(who string) {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), readOnlyEnv+"="+dir, aloneEnv+"="+who)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER, Setpgid: true,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}
		out, err := cmd.CombinedOutput()
		if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOSPC) {
			t.Skip("a process may not have mounts of its own here")
		}
		if strings.Contains(string(out), "--- SKIP: ") {
			t.Skipf("%s", out)
		}
		require.NoError(t, err, "%s", out)
	}
	look("nobody")
	s, err := Open(testContext(t), o)
	require.NoError(t, err)
	look("somebody")
	require.NoError(t, s.Close())
}

// lookAtReadOnly does it, in a process that has mounts of its own.
func lookAtReadOnly(t *testing.T, dir string) {
	if err := syscall.Mount(dir, dir, "", syscall.MS_BIND, ""); err != nil {
		t.Skip("mount:", err)
	}
	if err := syscall.Mount("", dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Skip("mount for reading:", err)
	}
	require.ErrorIs(t, os.WriteFile(filepath.Join(dir, "x"), nil, 0o600), syscall.EROFS)
	ctx, o := testContext(t), small(dir)
	if os.Getenv(aloneEnv) == "somebody" {
		_, err := Verify(ctx, o, VerifyOptions{})
		requireKind(t, skep.Locked, err)
		_, err = Rebuild(ctx, o, true, nil)
		requireKind(t, skep.Locked, err)
		return
	}
	rep, err := Verify(ctx, o, VerifyOptions{Deep: true})
	require.NoError(t, err)
	require.True(t, rep.Sound, "%+v", rep)
	require.EqualValues(t, 20, rep.Blocks)
	dry, err := Rebuild(ctx, o, true, nil)
	require.NoError(t, err)
	require.EqualValues(t, 20, dry.Blocks)
	_, err = Rebuild(ctx, o, false, nil)
	require.ErrorIs(t, err, syscall.EROFS)
	_, err = Open(ctx, o)
	require.ErrorIs(t, err, syscall.EROFS)
	requireKind(t, skep.ReadOnly, err)
	require.ErrorContains(t, err, "or open the store read-only")
	o.ReadOnly = true
	s, err := Open(ctx, o)
	require.NoError(t, err)
	_, err = s.Scrub(ctx, ScrubOptions{DryRun: true})
	require.NoError(t, err)
	require.NoError(t, s.Close())
}
