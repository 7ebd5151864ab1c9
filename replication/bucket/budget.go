package bucket

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"github.com/skepkv/skep"
)

// Budget bounds what a node sends to the bucket and fetches from it.
type Budget struct {
	Rate     int64 // bytes a second, sent; 0: as many as go
	SendADay int64 // bytes; 0: any
	LoadADay int64 // bytes; 0: any
	MoneyDay float64
	Prices   Prices
}

// Prices are of one call, and of a byte that leaves the bucket, in the unit of Budget.MoneyDay. Prices of what is
// stored are bounded by Options.MaxBytes.
type Prices struct {
	Write float64 // of one call that puts or lists
	Read  float64 // of one that gets
	Byte  float64 // fetched
}

func (b *Budget) validate() error {
	const op = "bucket"
	for name, v := range map[string]float64{"money a day": b.MoneyDay, "price of a write": b.Prices.Write,
		"price of a read": b.Prices.Read, "price of a byte": b.Prices.Byte} {
		if !(v >= 0) || v > 1e6 {
			return skep.Invalidf(op, name, v, "0 to 1e6")
		}
	}
	bytes := map[string]int64{"rate": b.Rate, "bytes sent a day": b.SendADay, "bytes fetched a day": b.LoadADay}
	for name, v := range bytes {
		if v < 0 {
			return skep.Invalidf(op, name, v, "0 or more")
		}
	}
	if b.MoneyDay > 0 && b.Prices == (Prices{}) {
		return skep.Invalidf(op, "prices", "none", "some, where money is bounded")
	}
	return nil
}

// A day's budget comes by the second, and up to an hour of it is saved. There is none at the start: a server that is
// started again and again spends no more.
const (
	day   = 24 * time.Hour
	saved = time.Hour
)

// purse is one bound; nil: none.
type purse struct{ *rate.Limiter }

// unit makes amounts whole numbers: a limiter's burst is one.
func newPurse(aDay float64, unit float64) *purse {
	if aDay <= 0 {
		return nil
	}
	l := rate.NewLimiter(rate.Limit(aDay/unit/day.Seconds()), max(1, int(aDay/unit*saved.Seconds()/day.Seconds())))
	l.AllowN(time.Now(), l.Burst())
	return &purse{l}
}

// may says whether that much may be spent now, and spends it. What costs more than is ever saved is paid by what comes
// later.
func (p *purse) may(n int64) bool {
	if p == nil || n <= 0 {
		return true
	}
	burst := int64(p.Burst())
	if !p.AllowN(time.Now(), int(min(n, burst))) {
		return false
	}
	for n -= burst; n > 0; n -= burst { // it is owed
		p.ReserveN(time.Now(), int(min(n, burst)))
	}
	return true
}

// budget is what is left of a Budget.
type budget struct {
	of         Budget
	pace       *rate.Limiter
	sent, load *purse
	money      *purse
}

const moneyUnit = 1e-9 // of what money is counted in

func newBudget(b Budget) *budget {
	out := &budget{of: b, pace: rate.NewLimiter(rate.Inf, 0), sent: newPurse(float64(b.SendADay), 1),
		load: newPurse(float64(b.LoadADay), 1), money: newPurse(b.MoneyDay, moneyUnit)}
	if b.Rate > 0 {
		out.pace = rate.NewLimiter(rate.Limit(b.Rate), paceStep)
	}
	return out
}

const paceStep = 1 << 20

// maySend says whether an object of so many bytes may be put.
func (b *budget) maySend(n int64) bool {
	return b.mayPay(b.of.Prices.Write) && b.sent.may(n)
}

// mayLoad says whether so many bytes may be fetched in one call.
func (b *budget) mayLoad(n int64) bool {
	return b.mayPay(b.of.Prices.Read+float64(n)*b.of.Prices.Byte) && b.load.may(n)
}

func (b *budget) mayPay(price float64) bool { return b.money.may(int64(price / moneyUnit)) }

// wait waits until so many bytes may go by the rate.
func (b *budget) wait(ctx context.Context, n int64) error {
	for ; n > 0 && b.pace.Limit() != rate.Inf; n -= paceStep {
		if err := b.pace.WaitN(ctx, int(min(n, paceStep))); err != nil {
			return &skep.Error{Op: "bucket", Kind: skep.Deadline, Field: "rate", Value: fmt.Sprint(b.of.Rate), Err: err}
		}
	}
	return nil
}
