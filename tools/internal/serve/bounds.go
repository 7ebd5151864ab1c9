package serve

import (
	"bytes"
	"fmt"

	"gopkg.in/yaml.v3"

	"github.com/skepkv/skep"
)

// What a configuration may be. The parser takes some hundred bytes a value, aliases
// multiply values, and the decoder has an error for each pair of equal keys: so these bound
// what reading one takes, whoever wrote it, to 80 MiB (extent.memory).
const (
	maxValues   = 1 << 16 // values of a file, counted again wherever an alias repeats them
	maxKeys     = 10_000  // keys of a mapping, and credentials
	maxProblems = 100     // listed of one file
)

// extent is how much a YAML text holds.
type extent struct {
	bytes  int
	marks  int // bytes that may begin or end a value: at least as many as there are values
	values int // as a decoder sees them, 0 where it sees none
	keys   int // of the largest mapping
	pairs  int // of equal keys of a mapping
}

// measure reads text as far as that takes little memory.
func measure(text []byte) extent {
	e := extent{bytes: len(text)}
	for _, b := range []byte("\n,:-?[{") {
		e.marks += bytes.Count(text, []byte{b})
	}
	var doc yaml.Node
	if e.marks <= maxValues && yaml.Unmarshal(text, &doc) == nil {
		e.walk(&doc)
	}
	return e
}

// memory is what decoding takes at most, in bytes.
func (e *extent) memory() int64 {
	return 16*int64(e.bytes) + 1<<10*int64(max(e.marks, e.values))
}

// check says what is too much.
func (e *extent) check(name string) error {
	for _, x := range []struct {
		what    string
		n, most int
	}{
		{"bytes", e.bytes, MaxFileBytes}, {"marks of values", e.marks, maxValues}, {"values with those of aliases", e.values, maxValues},
		{"keys of a mapping", e.keys, maxKeys}, {"pairs of equal keys", e.pairs, maxProblems},
	} {
		if x.n > x.most {
			return skep.Invalidf("settings", name+", "+x.what, x.n, fmt.Sprintf("at most %d", x.most))
		}
	}
	return nil
}

// walk counts a node and what is below it, until there is too much.
func (e *extent) walk(n *yaml.Node) {
	if e.values++; e.values > maxValues {
		return
	}
	if n.Kind == yaml.AliasNode {
		e.walk(n.Alias)
		return
	}
	if n.Kind == yaml.MappingNode {
		e.keys = max(e.keys, len(n.Content)/2)
		times := map[string]int{}
		for i := 0; i < len(n.Content); i += 2 {
			e.pairs += times[n.Content[i].Value]
			times[n.Content[i].Value]++
		}
	}
	for _, c := range n.Content {
		e.walk(c)
	}
}

// firstOf is the first problems of a list, and how many more there are.
func firstOf(name string, list []error) []error {
	if len(list) <= maxProblems {
		return list
	}
	more := &skep.Error{Op: "settings", Kind: skep.Invalid, Field: name, Err: fmt.Errorf("%d problems more", len(list)-maxProblems)}
	return append(list[:maxProblems:maxProblems], more)
}
