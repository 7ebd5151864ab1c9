package command

import (
	"fmt"
	"io"
	"sort"
	"strings"
	"text/tabwriter"
	"unicode"
)

// Printable is text that does nothing to a terminal and stays in its line: whoever opens a namespace chooses its name.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '·'
	}, s)
}

// PrintableLines is text of several lines of which each is Printable, but for tabs.
func PrintableLines(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || r == '\n' || r == '\t' {
			return r
		}
		return '·'
	}, s)
}

// Table writes rows of cells in aligned columns.
func Table(w io.Writer, rows ...[]string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		for i, cell := range r {
			if i > 0 {
				fmt.Fprint(t, "\t")
			}
			fmt.Fprint(t, Printable(cell))
		}
		fmt.Fprintln(t)
	}
	t.Flush()
}

// Row makes a table's row.
func Row(cells ...any) []string {
	out := make([]string, len(cells))
	for i, c := range cells {
		switch c := c.(type) {
		case float64:
			out[i] = fmt.Sprintf("%.4g", c)
		default:
			out[i] = fmt.Sprint(c)
		}
	}
	return out
}

// Size prints bytes with a decimal prefix.
func Size(n int64) string {
	f, unit := float64(n), 0
	for f >= 1000 && unit < 6 {
		f /= 1000
		unit++
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.2f %cB", f, "kMGTPE"[unit-1])
}

// Counts prints a map by reason, most first.
func Counts(m map[string]int64) string {
	if len(m) == 0 {
		return "none"
	}
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Slice(keys, func(i, j int) bool { return m[keys[i]] > m[keys[j]] || m[keys[i]] == m[keys[j]] && keys[i] < keys[j] })
	for i, k := range keys {
		keys[i] = fmt.Sprintf("%d %s", m[k], k)
	}
	return strings.Join(keys, ", ")
}

// NameDevices says what settings that name other devices than a store has should have instead.
func NameDevices(has []string) string {
	return "take devices out of the settings, or write devices: [" + strings.Join(has, ", ") + "]"
}

// Backend says what moved the bytes and why not something better.
func Backend(name, reason string, simulated bool) string {
	if reason != "" {
		name += " (" + reason + ")"
	}
	if simulated {
		name += ", SIMULATED"
	}
	return name
}
