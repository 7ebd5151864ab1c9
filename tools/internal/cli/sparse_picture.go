package cli

import (
	"bytes"
	"fmt"
	"math"

	"github.com/skepkv/skep"
)

const (
	pictureCells  = 120 // a side of the matrix
	pictureCell   = 4   // pixels
	pictureMargin = 28
	faint         = 0.15 // nothing fainter is drawn: it is most of the pairs
)

// devicePalette tells drives apart in the picture of the placement.
var devicePalette = []string{"#1b6ca8", "#d1495b", "#2e933c", "#edae49", "#6a4c93", "#00798c", "#8d6a5a", "#5c6b73"}

// clusterPicture draws, for entries in the order of their clusters, which are activated
// together (darker: more often) and, below, which drive the first copy of each is on.
func clusterPicture(info skep.SparseInfo, layer int, c *skep.SparseClusters) []byte {
	var order []uint32
	seen := map[uint32]bool{}
	for _, m := range c.Members {
		for _, e := range m {
			if !seen[e] {
				seen[e] = true
				order = append(order, e)
			}
		}
	}
	n := min(pictureCells, len(order))
	side := n * pictureCell
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n",
		side+2*pictureMargin, side+5*pictureMargin)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="#ffffff"/><text x="%d" y="18">layer %d: entries activated together, in the order of their %d clusters</text>`+"\n",
		pictureMargin, layer, len(c.Sizes))
	if n == 0 || c.Together == nil {
		fmt.Fprintf(&b, `<text x="%d" y="40">nothing was observed</text>`+"\n", pictureMargin)
	} else {
		drawTogether(&b, order, n, c.Together)
	}
	top := pictureMargin + side + pictureMargin
	fmt.Fprintf(&b, `<text x="%d" y="%d">the drive of each, %d drives; copies %.2f, balance %.2f</text>`+"\n", pictureMargin, top-6, info.Devices, c.Copies, c.Balance)
	for x := range n {
		e := order[x*len(order)/n]
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="20" fill="%s"/>`+"\n", pictureMargin+x*pictureCell, top, pictureCell, devicePalette[int(c.Places[e])%len(devicePalette)])
	}
	for d := range min(info.Devices, len(devicePalette)) {
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="12" height="12" fill="%s"/><text x="%d" y="%d">%d</text>`+"\n",
			pictureMargin+d*40, top+30, devicePalette[d], pictureMargin+d*40+16, top+41, d)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// drawTogether samples entries evenly and draws a square a pair.
func drawTogether(b *bytes.Buffer, order []uint32, n int, together func(x, y uint32) int) {
	for y := range n {
		f := order[y*len(order)/n]
		for x := range y + 1 {
			e := order[x*len(order)/n]
			both := float64(together(e, f))
			if both == 0 {
				continue
			}
			near := both / math.Sqrt(float64(together(e, e))*float64(together(f, f)))
			if near < faint {
				continue
			}
			for _, at := range [][2]int{{x, y}, {y, x}} {
				fmt.Fprintf(b, `<path d="M%d %dh%dv%dh-%dz" opacity="%.1f"/>`+"\n",
					pictureMargin+at[0]*pictureCell, pictureMargin+at[1]*pictureCell, pictureCell, pictureCell, pictureCell, near)
				if x == y {
					break
				}
			}
		}
	}
}
