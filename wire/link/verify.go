package link

import (
	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/frames"
)

// Verifier compares bytes that come in order with the checksums that cover them.
type Verifier struct {
	Sums []frames.Sum
	By   *Summer
	at   int    // the sum that covers the next byte
	done uint64 // bytes of it that were given to s
	bad  int    // number of sums that did not match, or do not fit
}

// Write takes the bytes that come next.
func (v *Verifier) Write(p []byte) {
	for len(p) > 0 {
		if v.at >= len(v.Sums) {
			v.bad++
			return
		}
		c := &v.Sums[v.at]
		n := min(c.Len-v.done, uint64(len(p)))
		switch {
		case v.done == 0 && n == c.Len && c.Kind == frames.SumXXH3:
			v.judge(xxh3.HashSeed(p[:n], c.Seed) == c.Check)
		default:
			if v.done == 0 {
				v.By.Reset(c.Kind, c.Seed)
			}
			v.By.Write(p[:n])
			if v.done += n; v.done == c.Len {
				v.judge(v.By.Sum() == c.Check && KnownSum(c.Kind) == nil)
			}
		}
		p = p[n:]
	}
}

func (v *Verifier) judge(ok bool) {
	if !ok {
		v.bad++
	}
	v.at, v.done = v.at+1, 0
}

// End says whether everything matched and nothing was left uncovered.
func (v *Verifier) End() error {
	for v.at < len(v.Sums) && v.Sums[v.at].Len == 0 {
		v.at++
	}
	if v.bad > 0 || v.at != len(v.Sums) || v.done != 0 {
		return &skep.Error{Op: "restore", Kind: skep.Damaged, Field: "checksum on arrival", Value: v.bad, Limit: 0}
	}
	return nil
}
