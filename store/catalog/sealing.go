package catalog

import (
	"context"
	"encoding/binary"
	"slices"
)

// Sealing is a row 'k': things of an instance are encrypted, or were, with the key of this id. It stays when the last
// of them is evicted, and goes with the instance. Catalogs from before it was written have none.
type Sealing struct {
	Instance uint32
	Key      [16]byte
	Said     bool // the devices' logs say it too; programs from before they did wrote no such thing
}

// said is the body of a row that the devices' logs say too. That of others is empty.
var said = []byte{1}

func sealingKey(s Sealing) []byte { return append(key32(rowSealing, s.Instance), s.Key[:]...) }

// PutSealing notes a key.
func (b *Batch) PutSealing(s Sealing) {
	var body []byte
	if s.Said {
		body = said
	}
	b.seal(sealingKey(s), body, nil)
}

// DeleteSealing removes the row of a key.
func (b *Batch) DeleteSealing(s Sealing) { b.fail(b.b.Delete(sealingKey(s), nil)) }

// Sealings lists all such rows, by instance.
func (c *Catalog) Sealings(ctx context.Context) ([]Sealing, error) {
	return list(ctx, c, rowSealing, func(key, value []byte) (s Sealing, err error) {
		if len(key) != 21 {
			return s, damaged(key, errShort)
		}
		s.Instance, s.Key = binary.BigEndian.Uint32(key[1:]), [16]byte(key[5:])
		return s, decodeRow(key, value, func(body []byte) error {
			s.Said = slices.Equal(body, said)
			return nil
		})
	})
}
