// Package page draws measurements as one HTML page that needs nothing else:
// no script, no font, no style sheet and no picture from anywhere, so that it
// can be mailed, kept beside the raw samples and opened in ten years. Charts
// are inline SVG and follow the reader's light or dark setting.
//
// The page is a pure function of a [Report]: figures at the top for a glance,
// charts below, and under each chart the numbers it was drawn from as a table,
// which is also what a screen reader is given. Resting the pointer on a chart
// shows the values there.
//
// Invariants:
//
//   - Equal reports give equal bytes: nothing is read from a clock or a map.
//   - Every text is escaped, and control characters are dropped; the page is
//     well-formed XML whatever the text.
//   - Linear value axes include zero: a bar's length and a line's height can be
//     compared by eye. Where that hides what matters, use a log axis.
//   - A series keeps its colour by position, in an order that stays apart for
//     colour-blind readers; more than [MaxSeries] is an error, not a ninth colour.
//   - What cannot be drawn truthfully (NaN, infinities, zero on a log axis,
//     lengths that do not match) is skep.Invalid naming the field; nothing is
//     written then.
package page
