package storm

import (
	"fmt"
	"sync"

	"github.com/skepkv/skep/replication/clustermap"
)

// maps is the book of what was agreed on: of each epoch there is one map, on whichever node, and changes follow each
// other as they were answered. The epochs say in which order the nodes carried the changes out, so nothing has to be
// searched for: that order is right or it is not.
type maps struct {
	mu    sync.Mutex
	of    map[string]string // the map, by cluster and epoch
	from  map[string]string // the node that had it first
	said  map[string]uint32 // the epoch of the newest that a change was answered with, by cluster
	wrong []string
}

func newMaps() *maps {
	return &maps{of: map[string]string{}, from: map[string]string{}, said: map[string]uint32{}}
}

func (b *maps) says(form string, args ...any) { b.wrong = append(b.wrong, fmt.Sprintf(form, args...)) }

// saw notes that a node goes by a map.
func (b *maps) saw(node, cluster string, m *clustermap.Map) {
	text, err := m.Encode()
	b.mu.Lock()
	defer b.mu.Unlock()
	at := fmt.Sprint(cluster, " ", m.Epoch)
	switch was, ok := b.of[at]; {
	case err != nil:
		b.says("a map cannot be written: %v", err)
	case !ok:
		b.of[at], b.from[at] = string(text), node
	case was != string(text):
		b.says("two maps of epoch %d:\n%s has %s\n%s has %s", m.Epoch, b.from[at], was, node, text)
	}
}

// begins is the epoch that a change which begins now comes after.
func (b *maps) begins(cluster string) uint32 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.said[cluster]
}

// ends notes that a change was answered: it comes after all that were answered before it began.
func (b *maps) ends(cluster string, after, epoch uint32, what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if epoch < after {
		b.says("%s has epoch %d, and one of epoch %d was answered before it began", what, epoch, after)
	}
	b.said[cluster] = max(b.said[cluster], epoch)
}
