package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// classes are what mutants break; each needs at least leastOfClass.
var classes = []string{"order", "flush", "generation", "checksum", "space", "lease",
	"auth", "books", "clock", "cluster", "greedy", "hostile", "leftovers", "operator", "redis", "schedule", "second", "starved", "suite", "wire"}

const (
	leastOfClass = 3
	leastInAll   = 30
)

// mutant is one broken line.
type mutant struct {
	name, class, file string
	in                string // text of the function's declaration line; "": the whole file
	tests             []command
	old, new          string
	line              int // in the list
}

// command is one run of go test.
type command struct {
	env  []string
	pkg  string
	args []string
}

func (c command) String() string {
	return strings.TrimSpace(strings.Join(append(append(append([]string{}, c.env...), c.pkg), c.args...), " "))
}

// parse reads the list.
func parse(text string) ([]mutant, error) {
	var out []mutant
	var m *mutant
	names := map[string]bool{}
	scan := bufio.NewScanner(strings.NewReader(text))
	for n := 1; scan.Scan(); n++ {
		line := strings.TrimSpace(scan.Text())
		bad := func(what string) error { return fmt.Errorf("line %d: %s: %q", n, what, line) }
		word, rest, _ := strings.Cut(line, " ")
		rest = strings.TrimSpace(rest)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
			m = nil
		case m == nil:
			f := strings.Fields(line)
			if len(f) != 3 || names[f[0]] {
				return nil, bad("want a new name, a class and a file")
			}
			names[f[0]] = true
			out = append(out, mutant{name: f[0], class: f[1], file: f[2], line: n})
			m = &out[len(out)-1]
		case word == "in" && m.in == "":
			m.in = rest
		case word == "test":
			c, err := parseCommand(rest)
			if err != nil {
				return nil, bad(err.Error())
			}
			m.tests = append(m.tests, c)
		case word == "-" && m.old == "" && rest != "":
			m.old = rest
		case word == "+" && m.new == "" && m.old != "":
			m.new = rest
		default:
			return nil, bad("not part of a mutant")
		}
	}
	for _, m := range out {
		if m.old == "" || m.new == "" || len(m.tests) == 0 || m.old == m.new {
			return nil, fmt.Errorf("line %d: mutant %s lacks its tests, its old or its new line", m.line, m.name)
		}
	}
	return out, scan.Err()
}

func parseCommand(s string) (c command, err error) {
	f := strings.Fields(s)
	for len(f) > 0 && strings.Contains(f[0], "=") && !strings.HasPrefix(f[0], "-") {
		c.env = append(c.env, f[0])
		f = f[1:]
	}
	if len(f) == 0 || !strings.HasPrefix(f[0], "./") {
		return c, fmt.Errorf("want a package as ./path")
	}
	c.pkg, c.args = f[0], f[1:]
	return c, nil
}

// enough says whether the list is large enough to prove anything.
func enough(list []mutant) error {
	count := map[string]int{}
	for _, m := range list {
		count[m.class]++
	}
	for _, c := range classes {
		if count[c] < leastOfClass {
			return fmt.Errorf("class %s has %d mutants, must have at least %d", c, count[c], leastOfClass)
		}
		delete(count, c)
	}
	for c := range count {
		return fmt.Errorf("class %s is none of %v", c, classes)
	}
	if len(list) < leastInAll {
		return fmt.Errorf("%d mutants, must be at least %d", len(list), leastInAll)
	}
	return nil
}

// apply gives the mutated source.
func (m *mutant) apply(root string) ([]byte, error) {
	src, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return nil, err
	}
	lines := strings.Split(string(src), "\n")
	from, to := 0, len(lines)
	if m.in != "" {
		if from, to, err = m.function(lines); err != nil {
			return nil, err
		}
	}
	at := -1
	for i := from; i < to; i++ {
		if !m.is(strings.TrimSpace(lines[i])) {
			continue
		}
		if at >= 0 {
			return nil, m.misfit("is there twice, lines %d and %d", at+1, i+1)
		}
		at = i
	}
	if at < 0 {
		return nil, m.misfit("is not there any more")
	}
	indent := lines[at][:len(lines[at])-len(strings.TrimLeft(lines[at], "\t "))]
	lines[at] = indent + m.new
	return []byte(strings.Join(lines, "\n")), nil
}

// is says whether a line is the one to be broken.
func (m *mutant) is(line string) bool {
	if head, more := strings.CutSuffix(m.old, "…"); more {
		return strings.HasPrefix(line, head)
	}
	return line == m.old
}

// function is the range of lines of the function m speaks of.
func (m *mutant) function(lines []string) (from, to int, err error) {
	from = -1
	for i, l := range lines {
		if !strings.HasPrefix(l, "func ") {
			continue
		}
		if from >= 0 {
			return from, i, nil
		}
		if strings.Contains(l, m.in) {
			from = i
		}
	}
	if from < 0 {
		return 0, 0, m.misfit("is in no function %q", m.in)
	}
	return from, len(lines), nil
}

func (m *mutant) misfit(format string, args ...any) error {
	return fmt.Errorf("mutants.txt:%d: %s: in %s the line %q %s", m.line, m.name, m.file, m.old, fmt.Sprintf(format, args...))
}
