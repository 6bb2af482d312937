"""§1, §3: pages rendered to images, again whenever the page or a resource that it uses changes.

`tables` describes the data. `css` and `references` find what a document asks for, `dependencies`
has the observers that keep the reverse index and make pages due. `devtools` and `browser` drive
Chromium without a network, `answers` looks up what it asks for, and `render` is the observer that
makes the images.
"""
