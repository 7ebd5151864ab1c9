// Package runs cuts the blocks of a put into what goes into one frame each.
package runs

import (
	"fmt"
	"math"

	"github.com/skepkv/skep"
)

// Run is blocks that are sent in one frame, or one block that is too large for one.
type Run struct {
	skep.Range
	Large bool
}

// Of cuts a request into runs, for frames of so many bytes of payload and of body.
func Of(r *skep.PutRequest, payload int64, body int) ([]Run, error) {
	var out []Run
	cur, bytes, length := Run{}, int64(0), 1<<10
	cutHere := func(i int) {
		if i > cur.From {
			cur.To = i
			out = append(out, cur)
		}
		cur, bytes, length = Run{Range: skep.Range{From: i, To: i}}, 0, 1<<10
	}
	for i := range r.Blocks {
		b := &r.Blocks[i]
		if len(b.Parts) > skep.MaxParts {
			return nil, skep.Invalidf("put", "parts", len(b.Parts), fmt.Sprintf("1 to %d", skep.MaxParts))
		}
		var size int64
		fields := 128 + len(b.Name)
		for _, p := range b.Parts {
			if len(p.Name) > math.MaxUint16 {
				return nil, skep.Invalidf("put", "part name length in bytes", len(p.Name), fmt.Sprintf("1 to %d", skep.MaxPartNameSize))
			}
			size += int64(len(p.Bytes))
			fields += 32 + len(p.Name)
		}
		if size > payload {
			cutHere(i)
			cur.Large = true
			cutHere(i + 1)
			continue
		}
		if bytes+size > payload || length+fields > body {
			cutHere(i)
		}
		bytes += size
		length += fields
	}
	cutHere(len(r.Blocks))
	return out, nil
}
