package lint

import (
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

var (
	fence   = regexp.MustCompile("(?ms)^```.*?^```[ \t]*$")
	code    = regexp.MustCompile("`[^`\n]+`")
	link    = regexp.MustCompile(`!?\[[^\]]*\]\(([^()\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.+?)\s*#*$`)
)

// prose is Markdown without its code, where brackets mean nothing.
func prose(src []byte) string {
	return code.ReplaceAllString(fence.ReplaceAllString(string(src), ""), "")
}

// anchors are the names by which headings of a page can be linked to.
func anchors(src []byte) map[string]bool {
	out := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(string(src), ""), -1) {
		out[anchor(m[1])] = true
	}
	return out
}

// anchor is what renderers make of a heading: lower case, spaces to hyphens, letters,
// digits, hyphens and underscores kept.
func anchor(h string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(h) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			b.WriteRune(r)
		}
	}
	return b.String()
}

func TestLinksFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	require.Equal(t, "two-commands", anchor("Two commands"))
	require.Equal(t, "what-io_uring-is-for", anchor("What `io_uring` is for?"))
	src := []byte("# A b\n[x](y.md#z) and `[no](code)`\n```\n[no](fence)\n# not a heading\n```\n![p](img/p.svg)\n")
	var got []string
	for _, m := range link.FindAllStringSubmatch(prose(src), -1) {
		got = append(got, m[1])
	}
	require.Equal(t, []string{"y.md#z", "img/p.svg"}, got)
	require.Equal(t, map[string]bool{"a-b": true}, anchors(src))
}

func TestDocsLinksResolve(t *testing.T) {
	t.Parallel()
	linked := map[string]bool{} // pages docs/README.md leads to
	n := 0
	for _, f := range files(t, ".md") {
		for _, m := range link.FindAllStringSubmatch(prose(read(t, f)), -1) {
			u, err := url.Parse(m[1])
			if err != nil {
				t.Errorf("%s: link %q: %v", f, m[1], err)
				continue
			}
			if u.Scheme != "" {
				continue
			}
			n++
			to := f
			if u.Path != "" {
				to = path.Join(path.Dir(f), u.Path)
			}
			if strings.HasPrefix(to, "..") {
				t.Errorf("%s: link %q leads out of the repository", f, m[1])
				continue
			}
			if _, err := os.Stat(filepath.Join(root, to)); err != nil {
				t.Errorf("%s: link %q leads nowhere", f, m[1])
				continue
			}
			if u.Fragment != "" && strings.HasSuffix(to, ".md") && !anchors(read(t, to))[u.Fragment] {
				t.Errorf("%s: link %q: %s has no such heading", f, m[1], to)
			}
			if f == "docs/README.md" {
				linked[to] = true
			}
		}
	}
	require.Greater(t, n, 10, "links were looked at")
	for _, f := range files(t, ".md") {
		if strings.HasPrefix(f, "docs/") && f != "docs/README.md" && !linked[f] {
			t.Errorf("docs/README.md does not lead to %s", f)
		}
	}
}

var (
	target  = regexp.MustCompile(`(?m)^([a-z][a-z-]*):`)
	makeCmd = regexp.MustCompile("(?m)(?:^|`|&& )make ([a-z][a-z -]*[a-z])(?:`|$|\\s+#|\\s{2})")
	script  = regexp.MustCompile(`\btools/[a-z-]+\.sh\b|\.ci/run\b`)
)

// The documents' make targets and scripts exist, and scripts can be run.
func TestDocsCommandsExist(t *testing.T) {
	t.Parallel()
	targets := map[string]bool{}
	for _, m := range target.FindAllStringSubmatch(string(read(t, "Makefile")), -1) {
		targets[m[1]] = true
	}
	n := 0
	for _, f := range append(files(t, ".md"), ".ci/run") {
		src := string(read(t, f))
		for _, m := range makeCmd.FindAllStringSubmatch(src, -1) {
			for _, word := range strings.Fields(m[1]) {
				n++
				if !targets[word] {
					t.Errorf("%s: the Makefile has no target %q (in %q)", f, word, m[0])
				}
			}
		}
		for _, s := range script.FindAllString(src, -1) {
			n++
			st, err := os.Stat(filepath.Join(root, s))
			if err != nil {
				t.Errorf("%s speaks of %s, which is not there", f, s)
			} else if st.Mode()&0o111 == 0 {
				t.Errorf("%s cannot be executed", s)
			}
		}
	}
	require.Greater(t, n, 5, "commands were looked at")
}

// width is how many columns a line of prose may have.
const width = 120

// Documents are filled to 120 columns: tables and code are not.
func TestDocsLinesAreShort(t *testing.T) {
	t.Parallel()
	n := 0
	for _, f := range files(t, ".md") {
		fenced := false
		for i, line := range strings.Split(string(read(t, f)), "\n") {
			n++
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				fenced = !fenced
			}
			long := utf8.RuneCountInString(line) > width
			if long && !fenced && !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "![") && !strings.HasPrefix(line, "    ") {
				t.Errorf("%s:%d has more than %d columns", f, i+1, width)
			}
		}
	}
	require.Greater(t, n, 1000, "lines were looked at")
}
