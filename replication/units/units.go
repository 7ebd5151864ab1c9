// Package units is what a restore does in units of a chain, which are blocks or, of a chain that goes by layers, layers:
// how far each is, and what of them a claim is granted.
package units

import "github.com/skepkv/skep"

// State is how far a unit is.
type State uint8

// What becomes of a unit.
const (
	Pending State = iota
	Loaded        // or on its way
	Missed        // delivered as a miss
	Claimed       // the caller's
)

// Claim answers for positions that are tokens or layers. first is the position of unit 0 in units, per the positions
// of a unit, end that of the chain's end. What lies outside of the units is never loaded, so it is granted to whoever
// asks.
func Claim(units []State, r skep.Range, first, per, end int) skep.Claim {
	at := func(pos int) (unit int, inside bool) {
		unit = pos/per - first
		return unit, unit >= 0 && unit < len(units)
	}
	pos := r.From
	for to := min(r.To, end); pos < to; {
		next := min((pos/per+1)*per, end)
		if u, inside := at(pos); inside {
			if units[u] == Loaded {
				break
			}
			if units[u] == Pending {
				if pos%per != 0 || to < next {
					break // half a unit computed spares the nodes nothing
				}
				units[u] = Claimed
			}
		}
		pos = min(next, to)
	}
	jump := pos
	for jump < end {
		if u, inside := at(jump); !inside || units[u] != Loaded {
			break
		}
		jump = min((jump/per+1)*per, end)
	}
	return skep.Claim{Granted: skep.Range{From: r.From, To: pos}, Next: jump}
}
