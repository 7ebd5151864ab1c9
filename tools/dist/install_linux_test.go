package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What is handed out, made of what lies in this checkout for this machine, is installed as a user would, and passes
// the quick start.
func TestInstall(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it builds everything and makes a clean root: a minute or two")
	}
	if _, err := git(root, "rev-parse", "HEAD"); err != nil {
		t.Skipf("no checkout of git, from which versions and times come: %v", err)
	}
	dir, err := filepath.Abs(root)
	require.NoError(t, err)
	src, err := checkout(dir)
	require.NoError(t, err)
	w := want{out: t.TempDir(), arches: []string{runtime.GOARCH}, kinds: kinds, say: t.Logf}
	names, err := w.make(src, t.TempDir())
	require.NoError(t, err)
	found := map[string]string{}
	for _, name := range names {
		switch {
		case strings.HasPrefix(name, "libskep_") && strings.HasSuffix(name, ".tar.gz"):
			found["library"] = filepath.Join(w.out, name)
		case strings.HasSuffix(name, ".tar.gz"):
			found[kindArchive] = filepath.Join(w.out, name)
		case strings.HasPrefix(name, "skep_") && strings.HasSuffix(name, ".deb"):
			found[kindDeb] = filepath.Join(w.out, name)
		case strings.HasSuffix(name, "_image.tar"):
			found[kindImage] = filepath.Join(w.out, name)
		case strings.HasPrefix(name, "libskep1_"):
			found["libskep1"] = filepath.Join(w.out, name)
		case strings.HasPrefix(name, "libskep-dev_"):
			found["libskep-dev"] = filepath.Join(w.out, name)
		}
	}
	t.Run("archive", func(t *testing.T) { archiveInstalls(t, found[kindArchive]) })
	t.Run("image", func(t *testing.T) { imageRuns(t, found[kindImage]) })
	t.Run("deb", func(t *testing.T) { debInstalls(t, found[kindDeb], found["libskep1"], found["libskep-dev"]) })
	t.Run("boot", func(t *testing.T) { bootInstalls(t, found[kindDeb]) })
	t.Run("library", func(t *testing.T) {
		if found["library"] == "" {
			t.Skip("libskep was not made")
		}
		top := unpacked(t, found["library"])
		engine := filepath.Join(root, "tools/libskep/testdata/engine.c")
		require.Equal(t, "32 caches filled", compiledAndRun(t, top, engine, t.TempDir()))
	})
}

func archiveInstalls(t *testing.T, file string) {
	dir := t.TempDir()
	_, err := output(dir, nil, "tar", "-xf", file)
	require.NoError(t, err)
	top := filepath.Join(dir, strings.TrimSuffix(filepath.Base(file), ".tar.gz"))
	p := place{dir: t.TempDir(), path: filepath.Join(top, "bin")}
	for _, line := range []string{
		"skep config check " + filepath.Join(top, "skep.yaml"),
		"bash -n " + filepath.Join(top, "completions/skep.bash"),
		"test -s " + filepath.Join(top, "examples/alerts.yaml") + " -a -s " + filepath.Join(top, "examples/grafana.json"),
		"skep bench --help",
	} {
		_, err := p.shell(t, nil, line)
		require.NoError(t, err)
	}
	quickstart(t, p)
}

// rooted skips where a test may not change its root.
func rooted(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root: chroot is not permitted")
	}
}

// The image's file system has nothing but the program, which runs as the image's user.
func imageRuns(t *testing.T, file string) {
	rooted(t)
	img := imagesIn(t, file)[runtime.GOARCH]
	dir := t.TempDir()
	unpack(t, img, dir)
	f, err := img.ConfigFile()
	require.NoError(t, err)
	uid, gid, _ := strings.Cut(f.Config.User, ":")
	p := place{root: dir, dir: "/"}
	p.uid, err = strconv.Atoi(uid)
	require.NoError(t, err)
	p.gid, err = strconv.Atoi(gid)
	require.NoError(t, err)
	command := append(append([]string{}, f.Config.Entrypoint...), f.Config.Cmd...)
	s := starts(t, p.command(t, append(f.Config.Env, anywhere...), command[0], command[1:]...))
	env := []string{"SKEP_SERVER=" + s.at["wire"]}
	for _, line := range []string{"status --wait ready", "put greeting --text hello", "get greeting"} {
		c := strings.Fields(line)
		out, err := p.command(t, env, "/skep", c...).Output()
		require.NoError(t, err, c)
		if c[0] == "get" {
			require.Equal(t, "hello", strings.TrimSpace(string(out)))
		}
	}
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, s.cmd.Wait())
	_, err = os.Stat(filepath.Join(dir, "data", "LOCK"))
	require.NoError(t, err, "the store is in the volume")
}

// cleanRoot is a small system of Debian that has seen nothing yet, and has these packages besides.
func cleanRoot(t *testing.T, packages ...string) string {
	t.Helper()
	rooted(t)
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		t.Skip("mmdebstrap is not installed: no clean root")
	}
	dir := filepath.Join(t.TempDir(), "root")
	// Other suites have other compilers and the same packages; libskep is for a glibc like this machine's.
	suite := "stable"
	if b, err := os.ReadFile("/etc/os-release"); err == nil && strings.Contains(string(b), "\nID=debian\n") {
		suite = regexp(t, `(?m)^VERSION_CODENAME=(\w+)$`, string(b))
	}
	args := []string{"-q", "--variant=minbase", "--mode=root"}
	if len(packages) > 0 {
		args = append(args, "--include="+strings.Join(packages, ","))
	}
	if _, err := output(".", nil, "mmdebstrap", append(args, suite, dir)...); err != nil {
		t.Skipf("mmdebstrap could not make a clean root: %v", err)
	}
	if err := syscall.Mount("proc", filepath.Join(dir, "proc"), "proc", 0, ""); err != nil {
		t.Skipf("no /proc in a clean root: %v", err)
	}
	t.Cleanup(func() { assert.NoError(t, syscall.Unmount(filepath.Join(dir, "proc"), syscall.MNT_DETACH)) })
	return dir
}

func debInstalls(t *testing.T, deb, lib, dev string) {
	dir := cleanRoot(t)
	admin := place{root: dir, dir: "/"}
	do := func(line string) string {
		t.Helper()
		out, err := admin.shell(t, []string{"DEBIAN_FRONTEND=noninteractive"}, line)
		require.NoError(t, err, line)
		return out
	}
	absent := func(path string) {
		t.Helper()
		_, err := os.Lstat(filepath.Join(dir, path))
		require.ErrorIs(t, err, os.ErrNotExist, path)
	}
	for _, file := range []string{deb, lib, dev} {
		if file != "" {
			_, err := output(".", nil, "cp", file, filepath.Join(dir, "tmp"))
			require.NoError(t, err)
		}
	}
	do("cd /tmp && apt-get install -y --no-install-recommends ./skep_*.deb")
	mode := do("stat -c '%U:%G %a' /etc/skep/skep.yaml")
	assert.Equal(t, "root:skep 640", mode, "the server reads its settings, others do not")
	absent("/etc/systemd/system/multi-user.target.wants/skep.service")
	absent(stateDir)
	t.Log(do("skep version"))
	assert.Empty(t, do("dpkg --verify skep"))

	ids := strings.Split(do("getent passwd skep"), ":")
	as := admin
	var err error
	as.uid, err = strconv.Atoi(ids[2])
	require.NoError(t, err)
	as.gid, err = strconv.Atoi(ids[3])
	require.NoError(t, err)
	as.dir = "/tmp/quickstart"
	do("install -d -o skep -g skep " + as.dir)
	quickstart(t, as)
	unitServes(t, admin, as)

	if lib == "" {
		t.Log("skipped: libskep1 and libskep-dev, which were not made")
	} else {
		do("cd /tmp && apt-get install -y --no-install-recommends ./libskep1_*.deb")
		assert.Contains(t, do("ldconfig -p"), "libskep.so.1")
		assert.NotContains(t, do("ldd /usr/lib/*/libskep.so.1"), "not found")
		do("cd /tmp && apt-get install -y --no-install-recommends ./libskep-dev_*.deb")
		do("cmp /usr/lib/*/libskep.so /usr/lib/*/libskep.so.1 && test -f /usr/lib/*/pkgconfig/skep.pc")
	}

	do("apt-get remove -y skep")
	absent("/usr/bin/skep")
	do("test -f /etc/skep/skep.yaml && test -f " + stateDir + "/LOCK")
	out := do("dpkg --purge skep")
	assert.Contains(t, out, "rm -rf "+stateDir, "it says how data are deleted")
	absent("/etc/skep")
	do("test -f " + stateDir + "/LOCK && getent passwd skep")
	do("rm -rf " + stateDir + " && dpkg -i /tmp/skep_*.deb && dpkg --purge skep")
	_, err = admin.shell(t, nil, "getent passwd skep")
	require.Error(t, err, "without data the user goes, too")
}

// unitServes runs what the unit would, as its user, with the directories that systemd makes.
func unitServes(t *testing.T, admin, as place) {
	t.Helper()
	unit := read(t, filepath.Join(admin.root, "usr/lib/systemd/system/skep.service"))
	env := append([]string{}, anywhere...)
	for name, parent := range map[string]string{"State": "/var/lib/", "Runtime": "/run/"} {
		dir := parent + regexp(t, `(?m)^`+name+`Directory=(.*)$`, unit)
		_, err := admin.shell(t, nil, "install -d -o skep -g skep "+dir)
		require.NoError(t, err)
		env = append(env, strings.ToUpper(name)+"_DIRECTORY="+dir)
	}
	require.Equal(t, "skep", regexp(t, `(?m)^User=(.*)$`, unit))
	as.dir = "/"
	s := starts(t, as.command(t, env, "/bin/bash", "-c", "exec "+regexp(t, `(?m)^ExecStart=(.*)$`, unit)))
	// The socket is where the command looks for it.
	out, err := as.shell(t, nil, "skep status --wait ready && skep put greeting --text hello && skep get greeting")
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(out, "hello"), out)
	s.stop(t)
}
