package catalog

import (
	"encoding/binary"

	"github.com/skepkv/skep/layout"
)

// Row prefixes. They are stored: do not change.
const (
	rowBlock     = 'b'
	rowDevice    = 'd'
	rowGroup     = 'g'
	rowIntent    = 'j'
	rowSealing   = 'k'
	rowNamespace = 'n'
	rowOwner     = 'o'
	rowPurge     = 'p'
	rowStore     = 's'
	rowSideRoot  = 'x'
	rowSidePiece = 'y'
)

// blockKeySize is 1 + group 4 + page 4 + device 1 + sub 1.
const blockKeySize = 11

func appendBlockKey(b []byte, l layout.Location) []byte {
	b = append(b, rowBlock)
	b = binary.BigEndian.AppendUint32(b, l.Group)
	b = binary.BigEndian.AppendUint32(b, l.Page)
	return append(b, l.Device, l.Sub)
}

func parseBlockKey(k []byte) (layout.Location, bool) {
	if len(k) != blockKeySize || k[0] != rowBlock {
		return layout.Location{}, false
	}
	return layout.Location{
		Group:  binary.BigEndian.Uint32(k[1:]),
		Page:   binary.BigEndian.Uint32(k[5:]),
		Device: k[9],
		Sub:    k[10],
	}, true
}

func key16(row byte, n uint16) []byte { return binary.BigEndian.AppendUint16([]byte{row}, n) }
func key32(row byte, n uint32) []byte { return binary.BigEndian.AppendUint32([]byte{row}, n) }
func key64(row byte, n uint64) []byte { return binary.BigEndian.AppendUint64([]byte{row}, n) }

func purgeKey(p Purge) []byte { return append(key32(rowPurge, p.Instance), p.Tag[:]...) }

// keyRange is [lower, upper).
type keyRange struct{ lower, upper []byte }

// rowRange covers all rows of one kind.
func rowRange(row byte) keyRange { return keyRange{[]byte{row}, []byte{row + 1}} }

// groupRange covers all block rows of a group.
func groupRange(group uint32) keyRange {
	r := keyRange{lower: key32(rowBlock, group)}
	if group == 1<<32-1 {
		r.upper = []byte{rowBlock + 1}
	} else {
		r.upper = key32(rowBlock, group+1)
	}
	return r
}
