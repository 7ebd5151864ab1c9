package commandtest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/internal/command"
)

var rewrite = flag.Bool("rewrite", false, "write the scripts' outputs anew")

// Scripts runs testdata/*.txt: each "$ NAME …" line, with what it wrote to standard
// error and output and its exit code under it, NAME being the program's. $DIR is a directory of the script's
// own; numbers that differ from run to run are masked as #. A file is made with
// "$ file NAME" and the lines after it up to the next "$".
func Scripts(t *testing.T, p *command.Program) {
	scripts, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, scripts)
	for _, path := range scripts {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			got := play(t, p, string(want))
			if *rewrite {
				require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
				return
			}
			require.Equal(t, string(want), got, "go test -run TestScripts -rewrite writes it anew")
		})
	}
}

func play(t *testing.T, p *command.Program, script string) string {
	dir := t.TempDir()
	var out strings.Builder
	var file, content string
	flush := func() {
		if file != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(content), 0o644))
			file, content = "", ""
		}
	}
	for line := range strings.Lines(script) {
		cmd, isCmd := strings.CutPrefix(strings.TrimRight(line, "\n"), "$ ")
		switch {
		case strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" && file == "":
			out.WriteString(line)
		case isCmd && strings.HasPrefix(cmd, "file "):
			flush()
			file = strings.TrimPrefix(cmd, "file ")
			out.WriteString(line)
		case isCmd:
			flush()
			out.WriteString(line)
			words := strings.Fields(strings.ReplaceAll(cmd, "$DIR", dir))
			require.Equal(t, p.Name, words[0])
			o := Run(t, p, "", words[1:]...)
			out.WriteString(indent(mask(o.Stderr, dir)))
			out.WriteString(indent(mask(o.Stdout, dir)))
			fmt.Fprintf(&out, "  exit %d\n", o.Code)
		case file != "":
			content += line
			out.WriteString(line)
		}
	}
	return out.String()
}

// masked is what differs between runs: times, rates and sizes that depend on the machine.
var masked = regexp.MustCompile(`(\d+(\.\d+)?(e[-+]?\d+)?) ?(GB/s|µs|ms|s\b)|(lookup|restore|put|making payload|comparing it|waiting) \d+\.\d+|seconds( +)\d+\.\d+|(MB|kB|GB) (read|written|large)`)

func mask(s, dir string) string {
	s = strings.ReplaceAll(s, dir, "$DIR")
	var kept []string
	for line := range strings.Lines(s) {
		// Which backend and how large a device's files are depends on the build.
		if f := strings.Fields(line); len(f) > 0 && (f[0] == "backend" || f[0] == "device" || f[0] == "write" || f[0] == "seconds" || f[0] == "restore" || f[0] == "lookup") {
			continue
		}
		kept = append(kept, masked.ReplaceAllString(line, "#"))
	}
	return strings.Join(kept, "")
}

func indent(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		b.WriteString("  " + strings.TrimRight(line, "\n") + "\n")
	}
	return b.String()
}
