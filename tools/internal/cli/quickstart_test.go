//go:build unix

package cli_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/internal/redistest"
	"github.com/skepkv/skep/tools/internal/self"
)

// reader is who goes through the quick start: a directory of their own, a server in one terminal, the rest in another.
type reader struct {
	t      *testing.T
	dir    string
	server *exec.Cmd
	at     map[string]string // where the server listens, by protocol
}

// skep runs one command as its reader would. The ports of the page are others here.
func (r *reader) skep(args []string) string {
	r.t.Helper()
	cmd := r.command(args)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(r.t, cmd.Run(), "%v: %s", args, errs.String())
	return out.String()
}

func (r *reader) command(args []string) *exec.Cmd {
	cmd := exec.CommandContext(r.t.Context(), os.Args[0], args...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), self.Env+"=1", "SKEP_SERVER="+r.at["wire"])
	return cmd
}

// serve starts the server, and reads where it listens.
func (r *reader) serve(args []string) {
	r.t.Helper()
	r.server = r.command(append(args, "--listen", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--http", "127.0.0.1:0", "--unix", "none", "--dram", "16MiB"))
	out, err := r.server.StdoutPipe()
	require.NoError(r.t, err)
	var errs bytes.Buffer
	r.server.Stderr = &errs
	require.NoError(r.t, r.server.Start())
	r.at = map[string]string{}
	lines := bufio.NewScanner(out)
	for len(r.at) < 3 && lines.Scan() {
		if f := strings.Fields(lines.Text()); len(f) == 2 {
			r.at[f[0]] = f[1]
		}
	}
	if len(r.at) < 3 {
		_ = r.server.Wait()
		r.t.Fatalf("it does not serve: %s", errs.String())
	}
}

func (r *reader) kill(s os.Signal) {
	if r.server == nil {
		return
	}
	_ = r.server.Process.Signal(s)
	_ = r.server.Wait() // whatever it ends with
	r.server = nil
}

func (r *reader) redis(args []string) string {
	r.t.Helper()
	c := redistest.New(redistest.Options{Addr: r.at["resp"]})
	defer c.Close()
	switch {
	case args[0] == "set" && len(args) == 3:
		require.NoError(r.t, c.Set(r.t.Context(), args[1], []byte(args[2]), 0))
		return "OK\n"
	case args[0] == "get" && len(args) == 2:
		b, err := c.Get(r.t.Context(), args[1])
		require.NoError(r.t, err)
		return fmt.Sprintf("%q\n", b)
	}
	r.t.Fatalf("redis-cli %v: this test does not know it", args)
	return ""
}

// run is one line of the page. Where the page shows what it prints, the reader sees that.
func (r *reader) run(line, shown string) {
	r.t.Helper()
	words := strings.Fields(line)
	var said string
	switch {
	case strings.HasPrefix(line, "skep serve "):
		r.kill(os.Kill)
		r.serve(words[1:])
		return
	case line == "skep version", line == "skep demo": // they have tests of their own; the second takes a minute
		return
	case strings.HasPrefix(line, "skep inspect "), strings.HasPrefix(line, "skep verify "): // by then it was stopped
		r.kill(os.Interrupt)
		r.skep(words[1:])
		return
	case words[0] == "skep":
		said = r.skep(words[1:])
	case strings.HasPrefix(line, "redis-cli -p 7421 "):
		said = r.redis(words[3:])
	case line == "curl -s localhost:7422/readyz":
		resp, err := http.Get("http://" + r.at["http"] + "/readyz")
		require.NoError(r.t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		require.NoError(r.t, err)
		said = string(b)
	case strings.HasPrefix(line, "kill -9 "):
		r.kill(os.Kill)
		return
	default:
		r.t.Fatalf("%q: this test does not know it", line)
	}
	if shown != "" {
		require.Equal(r.t, strings.TrimSpace(shown), strings.TrimSpace(said), line)
	}
}

// Every command of the quick start runs, in its order, and prints what the page says.
func TestTheQuickStartRuns(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/tutorials/quickstart.md")
	require.NoError(t, err)
	r := &reader{t: t, dir: t.TempDir()}
	defer r.kill(os.Kill)
	n := 0
	for _, block := range regexp.MustCompile("(?ms)^```\n(.*?)^```").FindAllStringSubmatch(string(page), -1) {
		for _, part := range strings.Split("\n"+block[1], "\n$ ")[1:] {
			line, shown, _ := strings.Cut(part, "\n")
			r.run(line, shown)
			n++
		}
	}
	require.Greater(t, n, 15, "commands were run")
}
