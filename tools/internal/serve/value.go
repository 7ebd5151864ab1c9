package serve

import (
	"fmt"
	"strconv"
	"strings"
	"time"

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
	if err != nil || !(n >= 0) || n*factor >= 1<<62 {
		return 0, fmt.Errorf("%q is not a size, such as 4096, 64KiB or 1.5GiB", s)
	}
	return Size(n * factor), nil
}

func (s Size) String() string {
	for i := 3; i >= 0; i-- {
		if u := units[i]; s != 0 && float64(s) >= u.n && int64(s)%int64(u.n) == 0 {
			return strconv.FormatInt(int64(s)/int64(u.n), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
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

// MarshalYAML writes a Size.
func (s Size) MarshalYAML() (any, error) { return s.String(), nil }

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

// MarshalYAML writes a Duration.
func (d Duration) MarshalYAML() (any, error) { return d.String(), nil }

// lineError is in the form in which the YAML decoder collects errors and goes on.
func lineError(n *yaml.Node, err error) error {
	if err == nil {
		err = fmt.Errorf("not a plain value")
	}
	return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: %v", n.Line, err)}}
}
