package main

import (
	_ "embed"
	"fmt"
	"io"
	"strings"
)

//go:embed unreachable.txt
var unreachableText string

// unreachable is the list of error returns that no test can come by.
type unreachable []unreachableReturn

type unreachableReturn struct {
	file, function, guard string // guard is the line above the return
	reason                string
	taken                 bool
}

// parseUnreachable reads the list: of each entry the file and the function, the line above
// the return, and the reason, which may take several lines. Empty lines stand between
// entries, and lines that begin with # are for readers.
func parseUnreachable(text string) (list unreachable, err error) {
	for entry := range strings.SplitSeq(text, "\n\n") {
		var lines []string
		for line := range strings.Lines(entry) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				lines = append(lines, line)
			}
		}
		if len(lines) == 0 {
			continue
		}
		file, function, ok := strings.Cut(lines[0], " ")
		if !ok || len(lines) < 3 {
			return nil, fmt.Errorf("unreachable.txt: %q: must be a file and a function, the line above the return, and a reason", lines[0])
		}
		list = append(list, unreachableReturn{file: file, function: function, guard: lines[1], reason: strings.Join(lines[2:], " ")})
	}
	return list, nil
}

// take says whether a return is listed, and notes that it is there.
func (u unreachable) take(file string, r errorReturn) bool {
	for i := range u {
		l := &u[i]
		if !l.taken && l.file == file && l.function == r.function && l.guard == r.guard {
			l.taken = true
			return true
		}
	}
	return false
}

// report prints the list. One that is not there any more is an error.
func (u unreachable) report(out io.Writer) error {
	for _, l := range u {
		if !l.taken {
			return fmt.Errorf("unreachable.txt: %s has no error return below %q in %s any more", l.file, l.guard, l.function)
		}
		fmt.Fprintf(out, "and none can be in %s, %s, below %q: %s\n", l.file, l.function, l.guard, l.reason)
	}
	return nil
}
