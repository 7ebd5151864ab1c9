package skep

import "fmt"

// ElementType is the type of one tensor element.
type ElementType uint8

// The element types, with their size in bits. The numbers are stored.
const (
	BF16 ElementType = 1 // 16 bits
	F16  ElementType = 2 // 16
	F32  ElementType = 3 // 32
	FP8  ElementType = 4 // 8
	I8   ElementType = 5 // 8
	FP4  ElementType = 6 // 4, two to a byte
)

var elementBits = map[ElementType]int{BF16: 16, F16: 16, F32: 32, FP8: 8, I8: 8, FP4: 4}
var elementText = map[ElementType]string{BF16: "bf16", F16: "f16", F32: "f32", FP8: "fp8", I8: "i8", FP4: "fp4"}

// Bits is the size of one element in bits, 0 for an unknown type.
func (e ElementType) Bits() int { return elementBits[e] }

func (e ElementType) String() string {
	if s, ok := elementText[e]; ok {
		return s
	}
	return fmt.Sprintf("element type %d", uint8(e))
}

// ShapeKind says what a block is made of. The numbers are stored.
type ShapeKind uint8

const (
	// Opaque blocks are bytes with no inner structure.
	Opaque ShapeKind = 0
	// Attention blocks hold K and V for each layer and KV head (MHA, GQA, MQA).
	Attention ShapeKind = 1
	// Latent blocks hold one vector a token and layer (MLA): no K and V, no heads.
	Latent ShapeKind = 2
)

func (k ShapeKind) String() string {
	switch k {
	case Opaque:
		return "opaque"
	case Attention:
		return "attention"
	case Latent:
		return "latent"
	}
	return fmt.Sprintf("shape kind %d", uint8(k))
}

// AxisOrder is the order of axes within one (layer, K or V) slice of an Attention block.
type AxisOrder uint8

const (
	// HND is [head][token][dim]: a head is contiguous.
	HND AxisOrder = 0
	// NHD is [token][head][dim]: a token is contiguous.
	NHD AxisOrder = 1
)

func (o AxisOrder) String() string {
	switch o {
	case HND:
		return "hnd"
	case NHD:
		return "nhd"
	}
	return fmt.Sprintf("axis order %d", uint8(o))
}

// Limits of a Shape and of what is stored under it.
const (
	MaxLayers      = 1024
	MaxKVHeads     = 4096
	MaxDim         = 1 << 16
	MaxBlockTokens = 1 << 16
	// MaxPartBytes is the largest part of a block.
	MaxPartBytes = 512 << 20
)

// Shape is the tensor geometry of one model shard's blocks. Its arithmetic (bytes,
// offsets, granules) is package layout's.
//
//	Attention  Layers × 2 × KVHeads × BlockTokens × HeadDim elements
//	Latent     Layers × BlockTokens × HeadDim elements (HeadDim = latent + rope dimensions)
//	Opaque     Bytes bytes, or any size up to MaxPartBytes when Bytes is 0
type Shape struct {
	Kind        ShapeKind   `json:"kind"`               // 0: opaque, 1: attention, 2: latent
	Layers      int         `json:"layers,omitempty"`   // of the model
	KVHeads     int         `json:"kv_heads,omitempty"` // heads of keys and values
	HeadDim     int         `json:"head_dim,omitempty"` // elements of a head
	Element     ElementType `json:"element,omitempty"`  // 1: bf16, 2: f16, 3: f32, 4: fp8, 5: i8, 6: fp4
	BlockTokens int         `json:"block_tokens"`       // B; at least 1
	Order       AxisOrder   `json:"order,omitempty"`    // of axes; 0: hnd, 1: nhd
	Bytes       int64       `json:"bytes,omitempty"`    // Opaque only
}

// Validate returns an Invalid error naming the first field outside its limits.
func (s Shape) Validate() error {
	const op = "shape"
	in := func(field string, v, max int) error {
		if v < 1 || v > max {
			return Invalidf(op, field, v, fmt.Sprintf("1 to %d", max))
		}
		return nil
	}
	if err := in("block tokens", s.BlockTokens, MaxBlockTokens); err != nil {
		return err
	}
	switch s.Kind {
	case Opaque:
		if s.Bytes < 0 || s.Bytes > MaxPartBytes {
			return Invalidf(op, "bytes", s.Bytes, fmt.Sprintf("0 to %d", int64(MaxPartBytes)))
		}
		if s.Layers != 0 || s.KVHeads != 0 || s.HeadDim != 0 || s.Element != 0 || s.Order != 0 {
			return Invalidf(op, "layers, heads, dimension, element and order", "set", "zero in an opaque shape")
		}
		return nil
	case Attention, Latent:
	default:
		return Invalidf(op, "kind", s.Kind, "opaque, attention or latent")
	}
	if s.Bytes != 0 {
		return Invalidf(op, "bytes", s.Bytes, "0 unless the shape is opaque")
	}
	if err := in("layers", s.Layers, MaxLayers); err != nil {
		return err
	}
	if err := in("head dimension", s.HeadDim, MaxDim); err != nil {
		return err
	}
	if s.Element.Bits() == 0 {
		return Invalidf(op, "element", s.Element, "bf16, f16, f32, fp8, i8 or fp4")
	}
	if s.Kind == Attention {
		if err := in("kv heads", s.KVHeads, MaxKVHeads); err != nil {
			return err
		}
		if s.Order != HND && s.Order != NHD {
			return Invalidf(op, "order", s.Order, "hnd or nhd")
		}
	} else if s.KVHeads != 0 || s.Order != HND {
		return Invalidf(op, "kv heads and order", "set", "zero in a latent shape")
	}
	bits := int64(s.HeadDim) * int64(s.Element.Bits())
	if bits%8 != 0 {
		return Invalidf(op, "head dimension", s.HeadDim, "a whole number of bytes for its element type")
	}
	// Computed stepwise so that hostile values cannot overflow.
	bytes := bits / 8
	for _, f := range []int{s.Layers, s.BlockTokens, max(s.KVHeads, 1), 2} {
		if bytes *= int64(f); bytes > 2*MaxPartBytes {
			return Invalidf(op, "block size in bytes", fmt.Sprintf("over %d", int64(MaxPartBytes)), fmt.Sprintf("at most %d", int64(MaxPartBytes)))
		}
	}
	if s.Kind == Latent {
		bytes /= 2
	}
	if bytes > MaxPartBytes {
		return Invalidf(op, "block size in bytes", bytes, fmt.Sprintf("at most %d", int64(MaxPartBytes)))
	}
	return nil
}
