/**
 * Follows the foot of a growing text while the reader is there, and leaves them alone otherwise.
 */

/** How far from the foot still counts as being there, in CSS pixels. */
export const NEAR_FOOT_PX = 32

export class Follower {
	#scroller
	#button
	#following = true
	/** The reader pulls upwards; growth must not win. */
	#leaving = false
	#lastTop = 0
	/** The foot when the reader last set out, where a smooth scroll ends. */
	#aimedAt = Infinity

	/** @param {HTMLElement} button  Shown while there is text below that the reader has not seen. */
	constructor(scroller, button) {
		this.#scroller = scroller
		this.#button = button
		const on = (kind, act) => scroller.addEventListener(kind, act, { passive: true })
		on("scroll", () => this.#onScroll())
		for (const gesture of ["wheel", "keydown", "touchmove", "pointerdown"])
			on(gesture, () => (this.#aimedAt = scroller.scrollHeight))
		let touched = 0
		on("wheel", ({ deltaY }) => (this.#leaving ||= deltaY < 0))
		on("touchmove", ({ touches: [{ clientY }] }) => {
			this.#leaving ||= touched > 0 && clientY > touched
			touched = clientY
		})
		on("touchend", () => (touched = 0))
		// The window, the composer or a late font may change the height too.
		new ResizeObserver(() => this.grown()).observe(scroller)
		button.addEventListener("click", () => this.toFoot())
	}

	/** The text may have grown. */
	grown() {
		if (this.#following) this.#jump()
		else this.#button.hidden = this.#distance() <= NEAR_FOOT_PX
	}

	toFoot() {
		this.#following = true
		this.#jump()
	}

	#jump() {
		this.#scroller.scrollTop = this.#scroller.scrollHeight
		this.#lastTop = this.#scroller.scrollTop
		this.#button.hidden = true
	}

	#onScroll() {
		const { scrollTop, clientHeight } = this.#scroller
		// Only a move upwards is the reader's wish: growth moves the foot away.
		if (scrollTop < this.#lastTop)
			this.#following = this.#distance() <= (this.#leaving ? 1 : NEAR_FOOT_PX)
		else if (scrollTop + clientHeight >= this.#foot() - NEAR_FOOT_PX) this.#following = true
		this.#leaving &&= !this.#following
		this.#lastTop = scrollTop
		if (!this.#following) return
		this.#button.hidden = true
		if (this.#distance() > NEAR_FOOT_PX) this.#jump()
	}

	#foot() {
		return Math.min(this.#scroller.scrollHeight, this.#aimedAt)
	}

	#distance() {
		const { scrollHeight, scrollTop, clientHeight } = this.#scroller
		return scrollHeight - scrollTop - clientHeight
	}
}
