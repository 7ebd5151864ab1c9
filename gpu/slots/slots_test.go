package slots

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// Every byte of a block arrives where its layer, head and token belong, and nothing else is
// touched, whatever the orders and whatever the pages hold.
func TestRuns(t *testing.T) {
	t.Parallel()
	for _, order := range []skep.AxisOrder{skep.HND, skep.NHD} {
		for _, to := range []skep.AxisOrder{skep.HND, skep.NHD} {
			for _, page := range []int{1, 4, 8, 32} {
				t.Run(fmt.Sprint(order, " to ", to, " in pages of ", page), func(t *testing.T) {
					g, err := layout.Of(skep.Shape{Kind: skep.Attention, Layers: 2, KVHeads: 3, HeadDim: 4, Element: skep.BF16, BlockTokens: 8, Order: order})
					require.NoError(t, err)
					p := Pages{Order: to, Tokens: page, Stride: int64(page*3*8) * 2}
					p.Bytes = 63*p.Stride + int64(page*3*8)
					require.NoError(t, p.Validate(g))
					slots := []int64{16, 17, 18, -1, 3, 2, 30, 31}
					block := make([]byte, g.PartBytes())
					for i := range block {
						block[i] = byte(i*7 + 1)
					}
					plane := make([]byte, p.Bytes)
					runs, err := p.Runs(nil, g, 1, true, slots)
					require.NoError(t, err)
					total := int64(0)
					for _, r := range runs {
						total += int64(copy(plane[r.To:r.To+r.Len], block[r.From:r.From+r.Len]))
					}
					require.EqualValues(t, 7*3*8, total)
					for token, slot := range slots {
						for head := range 3 {
							if slot < 0 {
								continue
							}
							from, err := g.Offset(layout.Position{Layer: 1, V: true, Head: head, Token: token})
							require.NoError(t, err)
							in := int(slot) % page
							at := int64(int(slot)/page)*p.Stride + int64(in*3+head)*8
							if to == skep.HND {
								at = int64(int(slot)/page)*p.Stride + int64(head*page+in)*8
							}
							require.Equal(t, block[from:from+8], plane[at:at+8], "token %d, head %d", token, head)
						}
					}
				})
			}
		}
	}
}

// A block that fills a page of the same order is one run.
func TestRunsMerge(t *testing.T) {
	t.Parallel()
	g, err := layout.Of(skep.Shape{Kind: skep.Attention, Layers: 2, KVHeads: 3, HeadDim: 4, Element: skep.BF16, BlockTokens: 4})
	require.NoError(t, err)
	p := Pages{Order: skep.HND, Tokens: 4, Stride: 96, Bytes: 960}
	runs, err := p.Runs(nil, g, 0, true, []int64{20, 21, 22, 23})
	require.NoError(t, err)
	require.Equal(t, []Run{{96, 480, 96}}, runs)

	latent, err := layout.Of(skep.Shape{Kind: skep.Latent, Layers: 2, HeadDim: 4, Element: skep.BF16, BlockTokens: 4})
	require.NoError(t, err)
	p = Pages{Order: skep.NHD, Tokens: 2, Stride: 16, Bytes: 160}
	require.NoError(t, p.Validate(latent))
	runs, err = p.Runs(nil, latent, 1, false, []int64{0, 1, 4, 5})
	require.NoError(t, err)
	require.Equal(t, []Run{{32, 0, 16}, {48, 32, 16}}, runs)
}

func TestBadPages(t *testing.T) {
	t.Parallel()
	g, err := layout.Of(skep.Shape{Kind: skep.Attention, Layers: 2, KVHeads: 3, HeadDim: 4, Element: skep.BF16, BlockTokens: 4})
	require.NoError(t, err)
	good := Pages{Order: skep.NHD, Tokens: 4, Stride: 96, Bytes: 960}
	require.NoError(t, good.Validate(g))
	for name, change := range map[string]func(*Pages){
		"order": func(p *Pages) { p.Order = 2 }, "no tokens": func(p *Pages) { p.Tokens = 0 }, "many tokens": func(p *Pages) { p.Tokens = 1 << 20 },
		"stride": func(p *Pages) { p.Stride = 95 }, "plane": func(p *Pages) { p.Bytes = 95 },
	} {
		p := good
		change(&p)
		require.ErrorIs(t, p.Validate(g), skep.Invalid, name)
	}
	for _, slots := range [][]int64{{40}, {1 << 62}, {0, 1, 2, 3, 4}} {
		_, err := good.Runs(nil, g, 0, false, slots)
		require.ErrorIs(t, err, skep.Invalid)
	}
	_, err = good.Runs(nil, g, 2, false, []int64{0})
	require.ErrorIs(t, err, skep.Invalid, "layer")
	opaque, err := layout.For(100)
	require.NoError(t, err)
	require.ErrorIs(t, good.Validate(opaque), skep.Unsupported)
}
