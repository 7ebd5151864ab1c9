package skep

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Split is how a model's layers are dealt out over the stages of a pipeline: the first layer of
// each stage but the first, growing. {12, 24} is three stages: layers 0 to 11, 12 to 23, 24 and up.
// Empty is one stage.
type Split []int

// partBoundary begins the names of boundary parts.
const partBoundary = "boundary."

// Stages is how many stages there are.
func (s Split) Stages() int { return len(s) + 1 }

// Validate returns an Invalid error when a model of so many layers cannot be split so, or
// when a boundary part's name would not fit MaxPartNameSize.
func (s Split) Validate(layers int) error {
	const op = "split"
	if len(s) >= MaxParts {
		return Invalidf(op, "borders", len(s), fmt.Sprintf("at most %d", MaxParts-1))
	}
	last := 0
	for i, first := range s {
		if first <= last || first >= layers {
			return Invalidf(op, fmt.Sprintf("first layer of stage %d", i+1), first, fmt.Sprintf("%d to %d", last+1, layers-1))
		}
		last = first
	}
	if n := len(s.BoundaryPart(len(s))); n > MaxPartNameSize {
		return Invalidf(op, "length of a part's name in bytes", n, fmt.Sprintf("at most %d", MaxPartNameSize))
	}
	return nil
}

// Layers is which of a model's layers a stage has.
func (s Split) Layers(stage, layers int) Range {
	r := Range{0, layers}
	if stage > 0 {
		r.From = s[stage-1]
	}
	if stage < len(s) {
		r.To = s[stage]
	}
	return r
}

// BoundaryPart names the part of a block that holds the activations of its tokens as they
// enter a stage, 1 to Stages()-1: "boundary.2@12-24" enters layer 24 of that split. A block so
// records for which split it has them: asked for another's, it answers with a miss of kind Conflict.
// "" for stage 0, which tokens enter.
func (s Split) BoundaryPart(stage int) string {
	if stage <= 0 || stage > len(s) {
		return ""
	}
	b := append(strconv.AppendInt([]byte(partBoundary), int64(stage), 10), '@')
	for i, first := range s {
		if i > 0 {
			b = append(b, '-')
		}
		b = strconv.AppendInt(b, int64(first), 10)
	}
	return string(b)
}

// BoundaryOf reads the name of a boundary part; false when it is none.
func BoundaryOf(part string) (s Split, stage int, ok bool) {
	rest, ok := strings.CutPrefix(part, partBoundary)
	if !ok {
		return nil, 0, false
	}
	number, borders, ok := strings.Cut(rest, "@")
	stage, err := strconv.Atoi(number)
	if !ok || err != nil {
		return nil, 0, false
	}
	for _, b := range strings.Split(borders, "-") {
		first, err := strconv.Atoi(b)
		if err != nil {
			return nil, 0, false
		}
		s = append(s, first)
	}
	return s, stage, s.Validate(MaxLayers) == nil && s.BoundaryPart(stage) == part
}

// validateBoundaries checks that the boundary parts of a manifest are of one split of the shape.
func (m Manifest) validateBoundaries(op string, shape *Shape) error {
	of := ""
	for _, p := range m {
		if !strings.HasPrefix(p.Name, partBoundary) {
			continue
		}
		s, _, ok := BoundaryOf(p.Name)
		if !ok {
			return Invalidf(op, "boundary part", p.Name, "named by Split.BoundaryPart")
		}
		if shape.Kind != Opaque {
			if err := s.Validate(shape.Layers); err != nil {
				return err
			}
		}
		_, borders, _ := strings.Cut(p.Name, "@")
		if of != "" && of != borders {
			return Invalidf(op, "boundary part "+p.Name, "of another split", "of "+of)
		}
		of = borders
	}
	return nil
}

// NoPart is the reason of a miss where a block lacks the part asked for: Conflict when it has boundary
// activations of another split, else NotFound. have is the names of the parts it has.
func NoPart(op, part string, have []string) *Error {
	if s, _, ok := BoundaryOf(part); ok {
		for _, name := range have {
			if other, _, ok := BoundaryOf(name); ok && !slices.Equal(other, s) {
				return &Error{Op: op, Kind: Conflict, Field: "split of the stages", Value: s, Limit: other}
			}
		}
	}
	return &Error{Op: op, Kind: NotFound, Field: "part", Value: part}
}
