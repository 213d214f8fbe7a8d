// The texts of a page whose colour differs too little from what is behind them (WCAG 2 AA: 4.5), and the boxes that
// are wider than the page. Opacity counts: a link in a pale paragraph is pale.
() => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches
  const channels = colour => { const all = colour.match(/[\d.]+/g).map(Number); return all.length < 4 ? [...all, 1] : all }
  const linear = part => (part /= 255) <= .03928 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4
  const luminance = colour => .2126 * linear(colour[0]) + .7152 * linear(colour[1]) + .0722 * linear(colour[2])
  const over = (front, back) => [0, 1, 2].map(n => front[n] * front[3] + back[n] * (1 - front[3])).concat(1)
  const found = []
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement, text = texts.currentNode.textContent.trim()
    const place = element.getBoundingClientRect()
    if (!text || element.closest("option") || !place.width || place.right < 0) continue
    const chain = []
    for (let node = element; node; node = node.parentElement) chain.unshift(getComputedStyle(node))
    let back = dark ? [18, 18, 18, 1] : [255, 255, 255, 1], opacity = 1
    for (const style of chain) { back = over(channels(style.backgroundColor), back); opacity *= style.opacity }
    const [r, g, b, a] = channels(chain.at(-1).color)
    const [one, two] = [luminance(over([r, g, b, a * opacity], back)), luminance(back)]
    const contrast = (Math.max(one, two) + .05) / (Math.min(one, two) + .05)
    if (contrast < 4.5) found.push(`${contrast.toFixed(2)}: ${text.slice(0, 40)}`)
  }
  for (const box of document.querySelectorAll(".scroll"))
    if (box.scrollWidth > box.clientWidth + 1) found.push(`${box.scrollWidth} wide: ${box.getAttribute("aria-label")}`)
  return found
}
