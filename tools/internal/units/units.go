// Package units has sizes, rates and durations as people write them: 64KiB, 2GB/s, 10s. They are values of flags and of
// settings.
package units

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"gopkg.in/yaml.v3"
)

// Size is a number of bytes, written as 4096, 64KiB, 1.5GiB or 2GB.
type Size int64

var units = []struct {
	name string
	n    float64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}}

// ParseSize reads a Size.
func ParseSize(s string) (Size, error) {
	text, factor := strings.TrimSpace(s), 1.0
	for _, u := range units {
		if rest, ok := strings.CutSuffix(text, u.name); ok {
			text, factor = strings.TrimSpace(rest), u.n
			break
		}
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n >= 0) || n*factor >= 1<<62 || n > 0 && n*factor < 1 { // a part of a byte is not 0
		return 0, fmt.Errorf("%q is not a size, such as 4096, 64KiB or 1.5GiB", s)
	}
	return Size(n * factor), nil
}

// String is the shortest way to write it exactly.
func (s Size) String() string {
	best := strconv.FormatInt(int64(s), 10)
	for _, u := range units {
		if u.n < 1<<10 || s == 0 || int64(s)%int64(u.n) != 0 { // not KB: 5000 says more than 5KB
			continue
		}
		if text := strconv.FormatInt(int64(s)/int64(u.n), 10) + u.name; len(text) <= len(best) {
			best = text
		}
	}
	return best
}

// Set makes a Size a flag's value.
func (s *Size) Set(text string) (err error) {
	*s, err = ParseSize(text)
	return err
}

// Type names it in a flag's help.
func (s *Size) Type() string { return "size" }

// UnmarshalYAML reads a Size.
func (s *Size) UnmarshalYAML(n *yaml.Node) error {
	if err := s.Set(n.Value); err != nil || n.Kind != yaml.ScalarNode {
		return lineError(n, err)
	}
	return nil
}

// UnmarshalJSON reads a Size: text, or a number.
func (s *Size) UnmarshalJSON(b []byte) error { return s.Set(unquoted(b)) }

// MarshalYAML writes a Size.
func (s Size) MarshalYAML() (any, error) { return s.String(), nil }

// SizeVar makes a flag of a number of bytes. Flags by older names set the same value, and say the new name.
func SizeVar(fl *pflag.FlagSet, p *int64, name string, value int64, usage string, older ...string) {
	*p = value
	fl.Var((*Size)(p), name, usage)
	Renamed(fl, name, older...)
}

// Rate is a number of bytes a second, written as 4096, 64KiB/s or 2GB/s.
type Rate int64

func (r Rate) String() string {
	if r == 0 {
		return "0"
	}
	return Size(r).String() + "/s"
}

// Set makes a Rate a flag's value.
func (r *Rate) Set(text string) error {
	n, err := ParseSize(strings.TrimSuffix(strings.TrimSpace(text), "/s"))
	if err != nil {
		return fmt.Errorf("%q is not a rate, such as 200MB/s or 1.5GiB/s", text)
	}
	*r = Rate(n)
	return nil
}

// Type names it in a flag's help.
func (r *Rate) Type() string { return "rate" }

// UnmarshalYAML reads a Rate.
func (r *Rate) UnmarshalYAML(n *yaml.Node) error {
	if err := r.Set(n.Value); err != nil || n.Kind != yaml.ScalarNode {
		return lineError(n, err)
	}
	return nil
}

// UnmarshalJSON reads a Rate: text, or a number.
func (r *Rate) UnmarshalJSON(b []byte) error { return r.Set(unquoted(b)) }

// MarshalYAML writes a Rate without its /s, as programs read it that know no other way.
func (r Rate) MarshalYAML() (any, error) { return Size(r).String(), nil }

// RateVar makes a flag of a number of bytes a second.
func RateVar(fl *pflag.FlagSet, p *int64, name string, value int64, usage string) {
	*p = value
	fl.Var((*Rate)(p), name, usage)
}

// Renamed has flags of older names set what the flag name sets. No help shows them, and Tell says the new name.
func Renamed(fl *pflag.FlagSet, name string, older ...string) {
	for _, old := range older {
		fl.Var(fl.Lookup(name).Value, old, "")
		Replaced(fl, old, "--"+name)
	}
}

const replacedBy = "replaced by" // annotation of a flag

// Replaced has no help show a flag any more, and Tell say what is used in its place.
func Replaced(fl *pflag.FlagSet, name, by string) {
	f := fl.Lookup(name)
	f.Hidden, f.Annotations = true, map[string][]string{replacedBy: {by}}
}

// Tell writes a line for each flag that was set and has been replaced.
func Tell(fl *pflag.FlagSet, w io.Writer) {
	fl.Visit(func(f *pflag.Flag) {
		if by := f.Annotations[replacedBy]; len(by) > 0 {
			fmt.Fprintf(w, "--%s is %s now; the next release takes only that\n", f.Name, by[0])
		}
	})
}

// Duration is a time.Duration, written as 10s or 1m30s.
type Duration time.Duration

func (d Duration) String() string { return time.Duration(d).String() }

// Set makes a Duration a flag's value.
func (d *Duration) Set(text string) error {
	v, err := time.ParseDuration(text)
	if text == "0" {
		v, err = 0, nil
	}
	if err != nil || v < 0 {
		return fmt.Errorf("%q is not a duration, such as 10s or 1m30s", text)
	}
	*d = Duration(v)
	return nil
}

// Type names it in a flag's help.
func (d *Duration) Type() string { return "duration" }

// UnmarshalYAML reads a Duration.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	if err := d.Set(n.Value); err != nil || n.Kind != yaml.ScalarNode {
		return lineError(n, err)
	}
	return nil
}

// UnmarshalJSON reads a Duration: text.
func (d *Duration) UnmarshalJSON(b []byte) error { return d.Set(unquoted(b)) }

// unquoted is a JSON value as it is written as text.
func unquoted(b []byte) string {
	var text string
	if json.Unmarshal(b, &text) == nil {
		return text
	}
	return string(b)
}

// MarshalYAML writes a Duration.
func (d Duration) MarshalYAML() (any, error) { return d.String(), nil }

// lineError is in the form in which the YAML decoder collects errors and goes on.
func lineError(n *yaml.Node, err error) error {
	if err == nil {
		err = fmt.Errorf("not a plain value")
	}
	return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: %v", n.Line, err)}}
}
