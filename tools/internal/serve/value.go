package serve

import (
	"fmt"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/skepkv/skep/tools/internal/units"
)

// Sizes, rates and durations of settings.
type (
	Size     = units.Size
	Rate     = units.Rate
	Duration = units.Duration
)

// Paths is a list of paths: in YAML a list or text, as text separated by commas.
type Paths []string

func (p Paths) String() string { return strings.Join(p, ",") }

// Set reads text.
func (p *Paths) Set(text string) error {
	*p = Paths{}
	for s := range strings.SplitSeq(text, ",") {
		if s = strings.TrimSpace(s); s != "" {
			*p = append(*p, s)
		}
	}
	if len(*p) == 0 && text != "" {
		return fmt.Errorf("%q names no path", text)
	}
	return nil
}

// UnmarshalYAML reads a list, or text.
func (p *Paths) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		return p.Set(n.Value)
	}
	return n.Decode((*[]string)(p))
}

// number is the number that p is in place of paths.
func (p Paths) number() (int, bool) {
	if len(p) != 1 {
		return 0, false
	}
	n, err := strconv.Atoi(p[0])
	return n, err == nil
}
