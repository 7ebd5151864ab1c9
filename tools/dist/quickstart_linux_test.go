package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	re "regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	patience = time.Minute
	often    = 20 * time.Millisecond
)

// place is where programs run: here, or in a root of their own.
type place struct {
	root string // "" or "/": this machine's
	dir  string // where they run, seen from root
	path string // directory of skep, seen from root; empty: it is on PATH
	uid  int    // whose they are; 0: this process's
	gid  int
}

// command is a program with its variables. It is killed when the test ends.
func (p place) command(t *testing.T, env []string, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = p.dir
	search := "/usr/sbin:/usr/bin:/sbin:/bin"
	if p.root == "" {
		search = os.Getenv("PATH")
	}
	cmd.Env = append([]string{"PATH=" + strings.TrimPrefix(p.path+":"+search, ":"), "HOME=" + p.dir, "LC_ALL=C"}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: p.root, Pdeathsig: syscall.SIGKILL}
	if p.uid != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(p.uid), Gid: uint32(p.gid)}
	}
	return cmd
}

// shell runs a line of bash, and gives what it prints on its standard output.
func (p place) shell(t *testing.T, env []string, line string) (string, error) {
	t.Helper()
	cmd := p.command(t, env, "/bin/bash", "-c", line)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Logf("%s: %v\n%s%s", line, err, out, errs.String())
	}
	return strings.TrimSpace(string(out)), err
}

// has says whether a program is there.
func (p place) has(t *testing.T, name string) bool {
	return p.command(t, nil, "/bin/bash", "-c", "command -v "+name).Run() == nil
}

// server is one that runs.
type server struct {
	cmd *exec.Cmd
	at  map[string]string // addresses, by protocol
}

// anywhere are settings by which servers of tests do not meet, and are small.
var anywhere = []string{
	"SKEP_LISTEN=127.0.0.1:0", "SKEP_RESP=127.0.0.1:0", "SKEP_HTTP=127.0.0.1:0", "SKEP_STORE_CAPACITY_BYTES=256MiB",
}

// starts waits until a command that serves has said where.
func starts(t *testing.T, cmd *exec.Cmd) *server {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	defer out.Close()
	errs, err := os.Create(filepath.Join(t.TempDir(), "errs"))
	require.NoError(t, err)
	defer errs.Close()
	cmd.Stdout, cmd.Stderr = out, errs
	require.NoError(t, cmd.Start())
	s := &server{cmd: cmd, at: map[string]string{}}
	t.Cleanup(func() {
		if s.cmd.ProcessState == nil {
			_ = s.cmd.Process.Kill()
			_ = s.cmd.Wait()
		}
	})
	said := func() bool {
		b, err := os.ReadFile(out.Name())
		return err == nil && strings.Contains(string(b), "unix:")
	}
	if !assert.Eventually(t, said, patience, often) {
		t.Fatalf("it does not start: %s", read(t, errs.Name()))
	}
	for _, m := range re.MustCompile(`(?m)^(wire|resp|http) +(127\S+)$`).FindAllStringSubmatch(read(t, out.Name()), -1) {
		s.at[m[1]] = m[2]
	}
	require.Len(t, s.at, 3)
	return s
}

// stop ends it, and wants it to have closed its store.
func (s *server) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGINT))
	require.NoError(t, s.cmd.Wait())
}

// typed is a line that a page has a user type, and what it says comes of it.
type typed struct{ line, shown string }

// commands are the lines that begin with $ in a page's blocks.
func commands(t *testing.T, page string) (list []typed) {
	t.Helper()
	for _, block := range re.MustCompile("(?ms)^```\n(.*?)^```$").FindAllStringSubmatch(read(t, page), -1) {
		for line := range strings.Lines(block[1]) {
			if c, ok := strings.CutPrefix(line, "$ "); ok {
				list = append(list, typed{line: strings.TrimSpace(c)})
			} else if n := len(list); n > 0 {
				list[n-1].shown += line
			}
		}
	}
	for i := range list {
		list[i].shown = strings.TrimSpace(list[i].shown)
	}
	require.Greater(t, len(list), 15, "the page was read")
	return list
}

// quickstart does what docs/tutorials/quickstart.md says, with the skep that is in a place: every command, and what the
// page shows of it has to come. Servers choose their ports.
func quickstart(t *testing.T, p place) {
	t.Helper()
	var now *server
	did := 0
	for _, c := range commands(t, filepath.Join(root, "docs/tutorials/quickstart.md")) {
		line, program := c.line, strings.Fields(c.line)[0]
		if !p.has(t, program) {
			t.Logf("skipped: %s: no %s", line, program)
			if strings.HasSuffix(line, "set answer 42") {
				line, c.shown = "skep put answer --text 42", "answer: 2 bytes"
			} else {
				continue
			}
		}
		did++
		env := slices.Clone(anywhere)
		if now != nil {
			port := func(protocol string) string {
				_, port, _ := strings.Cut(now.at[protocol], ":")
				return port
			}
			env = append(env, "SKEP_SERVER="+now.at["wire"])
			line = strings.NewReplacer("7421", port("resp"), "localhost:7422", now.at["http"]).Replace(line)
		}
		switch {
		case strings.HasPrefix(line, "skep serve"):
			now = starts(t, p.command(t, anywhere[:3], "/bin/bash", "-c", "exec "+line))
			continue
		case strings.HasPrefix(line, "kill -9"):
			_, err := p.shell(t, env, line)
			require.NoError(t, err)
			require.Error(t, now.cmd.Wait())
			now = nil
			continue
		case strings.HasPrefix(line, "skep top"):
			line += " --once"
		case strings.HasPrefix(line, "skep inspect"):
			now.stop(t)
		}
		out, err := p.shell(t, env, line)
		if strings.HasPrefix(line, "skep doctor") {
			t.Logf("%s: %v", line, err) // of this machine, which may be a poor one
			continue
		}
		require.NoError(t, err, line)
		switch {
		case strings.HasPrefix(line, "skep version"):
			require.Regexp(t, `^skep \S+ .*go1`, out)
		case strings.HasPrefix(line, "skep demo"):
			require.Regexp(t, `wrong bytes +0\b`, out)
		case strings.HasPrefix(line, "skep verify"):
			lines := strings.Split(out, "\n")
			require.Regexp(t, `^sound`, lines[len(lines)-1])
		case program == "redis-cli": // without a terminal it prints values as they are
			require.Equal(t, strings.Trim(c.shown, `"`), out, line)
		case c.shown != "":
			require.Equal(t, c.shown, out, line)
		}
	}
	require.Greater(t, did, 12, "most of it can be done anywhere")
}
