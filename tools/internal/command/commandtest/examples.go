package commandtest

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/internal/command"
)

var (
	codeBlock = regexp.MustCompile("(?ms)^```[a-z]*\n(.*?)^```|^((?:    .*\n)+)")
	codeSpan  = regexp.MustCompile("`([^`\n]+)`")
)

// ExamplesExist requires that what the pages show of the program, in blocks and in spans of code, names commands and
// flags that it has. It says how many it looked at.
func ExamplesExist(t *testing.T, p *command.Program, pages []string) int {
	n := 0
	for _, page := range pages {
		b, err := os.ReadFile(page)
		require.NoError(t, err)
		text := strings.ReplaceAll(string(b), "\\\n", " ")
		var lines []string
		for _, m := range codeBlock.FindAllStringSubmatch(text, -1) {
			lines = append(lines, strings.Split(m[1]+m[2], "\n")...)
		}
		for _, m := range codeSpan.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
			lines = append(lines, m[1])
		}
		for _, line := range lines {
			if args, ok := argumentsOf(p.Name, line); ok {
				n++
				exampleExists(t, p, page, line, args)
			}
		}
	}
	return n
}

// argumentsOf are the words that a line gives the program of that name; false: it does not run it.
func argumentsOf(name, line string) ([]string, bool) {
	words := strings.Fields(line)
	for len(words) > 0 && (words[0] == "$" || words[0] == "#" || words[0] == ">" || strings.Contains(words[0], "=")) {
		words = words[1:]
	}
	if len(words) < 2 || strings.TrimPrefix(words[0], "bin/") != name {
		return nil, false
	}
	var args []string
	for _, w := range words[1:] {
		if w == "|" || w == "&&" || w == "&" || w == "#" || strings.HasPrefix(w, ">") || strings.HasPrefix(w, "2>") {
			break
		}
		if w = strings.Trim(w, "[];"); w != "…" && w != "..." {
			args = append(args, w)
		}
	}
	return args, len(args) > 0 && regexp.MustCompile(`^(--)?[a-z][a-z-]*(=|$)`).MatchString(args[0])
}

func exampleExists(t *testing.T, p *command.Program, page, line string, args []string) {
	cmd, rest, err := p.Root().Find(args)
	if !assert.NoError(t, err, "%s: %s", page, line) || cmd.DisableFlagParsing {
		return
	}
	if !cmd.HasParent() && !strings.HasPrefix(args[0], "-") {
		t.Errorf("%s: %s has no command %s: %s", page, p.Name, args[0], line)
	}
	for _, arg := range rest {
		flag, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if !strings.HasPrefix(arg, "--") || flag == "help" {
			continue
		}
		var found *pflag.Flag
		if found = cmd.Flags().Lookup(flag); found == nil {
			found = cmd.InheritedFlags().Lookup(flag)
		}
		assert.NotNil(t, found, "%s: %s has no flag --%s: %s", page, cmd.CommandPath(), flag, line)
	}
}

// Manuals are all pages below docs, but for the notebook's, and those at the root. root is the way there.
func Manuals(t *testing.T, root string) []string {
	var out []string
	for _, dir := range []string{"", "docs", "docs/tutorials", "docs/howto", "docs/reference", "docs/explanation"} {
		entries, err := os.ReadDir(root + "/" + dir)
		require.NoError(t, err)
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".md") {
				out = append(out, root+"/"+dir+"/"+e.Name())
			}
		}
	}
	return out
}
