package segment

import "github.com/skepkv/skep"

// RecordID names one record of a block: no other has it.
type RecordID struct {
	Key      skep.Key
	SaltTag  SaltTag
	Instance uint32
	Seq      uint64
}

// ID names the record that h is the head of.
func (h *Head) ID() RecordID { return RecordID{h.Key, h.SaltTag, h.Instance, h.Seq} }

// ID names r.
func (r *Record) ID() RecordID { return RecordID{r.Key, r.SaltTag, r.Instance, r.Seq} }
