// Package underway says how much of a restore is loaded from a node at once.
package underway

// How many loads are under way at a node: of one chain and, where they are not small, of all; and where they are small.
// Chains of a block each would otherwise wait for each other's round trips. Loads of chains with a plan are counted
// apart: OfChain of all of them.
const (
	OfChain = 2
	Small   = 8
)

// Loads is what a node is loading.
type Loads struct {
	Loads   int // all
	Planned int // of chains with a plan
	Bytes   int64
}

// Count notes a load of so many bytes that begins, by 1, or has ended, by -1.
func (l *Loads) Count(by int, bytes int64, planned bool) {
	l.Loads += by
	if planned {
		l.Planned += by
	}
	l.Bytes += int64(by) * bytes
}

// Busy says that no more of a chain is begun, which has own loads there, where one load is of most bytes: so that a
// claim finds as much as possible not begun.
func (l *Loads) Busy(own int, most int64) bool {
	return own >= OfChain || l.Loads >= Small || l.Loads >= OfChain && l.Bytes >= most
}
