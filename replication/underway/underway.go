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
	Planned int   // loads of chains with a plan
	Loads   int   // others
	Bytes   int64 // of those
}

// Count notes a load of so many bytes that begins, by 1, or has ended, by -1.
func (l *Loads) Count(by int, bytes int64, planned bool) {
	if planned {
		l.Planned += by
		return
	}
	l.Loads += by
	l.Bytes += int64(by) * bytes
}

// Busy says that no more of a chain is begun, which has own loads there, where one load is of most bytes: so that a
// claim finds as much as possible not begun.
func (l *Loads) Busy(own int, most int64) bool {
	return own >= OfChain || l.Loads >= Small || l.Loads >= OfChain && l.Bytes >= most
}

// Window is the window that a node is asked for with a load of so many bytes at most: a server has memory for few large
// ones. What has come is said by quarters of it, so that of a small load nothing is said.
func Window(bytes int64) int64 { return min(max(5*bytes, 1<<20), 16<<20) }
