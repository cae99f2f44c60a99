"""A canvas for rendering our environments, and its colors.

It draws with pygame, which comes with `gymnasium[classic-control]` and needs no window. The first picture imports it.
Shapes are drawn at twice the size and scaled down, because pygame's own edges are jagged.
"""

import itertools
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from drl.core.specs import Array

if TYPE_CHECKING:
    from pygame.font import Font

FINER = 2  # scale at which shapes are drawn

Color = tuple[int, int, int]
NIGHT, PANEL, GROOVE = (17, 19, 28), (28, 31, 44), (48, 53, 72)
WHITE, GREY = (238, 240, 247), (148, 155, 178)
GREEN, AMBER, RED = (72, 199, 132), (240, 176, 72), (232, 84, 92)


class Canvas:
    """A picture of `width` × `height` pixels. Coordinates are pixels of the finished picture."""

    def __init__(self, width: int, height: int) -> None:
        import pygame

        self._pygame = pygame
        self._size = (width, height)
        self._surface = pygame.Surface((width * FINER, height * FINER), 0, 32)

    def box(self, at: tuple[float, float, float, float], color: Color, radius: int = 0) -> None:
        """A filled rectangle."""
        rect = self._pygame.Rect(*(round(FINER * x) for x in at))
        self._pygame.draw.rect(self._surface, color, rect, border_radius=FINER * radius)

    def curve(self, x: Array, y: Array, color: Color) -> None:
        """A line through points."""
        points = [(FINER * float(a), FINER * float(b)) for a, b in zip(x, y, strict=True)]
        for one, other in itertools.pairwise(points):
            self._pygame.draw.line(self._surface, color, one, other, 3 * FINER)
        for point in points:
            self._pygame.draw.circle(self._surface, color, point, 3 * FINER)

    def poster(self, at: tuple[int, int, int, int], top: Color, bottom: Color) -> None:
        """A panel with a color gradient from `top` to `bottom`, darkened so that white text is readable on it."""
        pygame = self._pygame
        rect = pygame.Rect(*(FINER * x for x in at))
        strip = pygame.Surface((1, 2), pygame.SRCALPHA, 32)
        strip.set_at((0, 0), _darker(top))
        strip.set_at((0, 1), _darker(bottom))
        colors = pygame.transform.smoothscale(strip, rect.size)
        mask = pygame.Surface(rect.size, pygame.SRCALPHA, 32)
        pygame.draw.rect(mask, (255, 255, 255, 255), mask.get_rect(), border_radius=FINER * 12)
        colors.blit(mask, (0, 0), special_flags=pygame.BLEND_RGBA_MULT)
        self._surface.blit(colors, rect)

    def measure(self, words: str, size: int) -> float:
        """Width of words in pixels."""
        return float(_font(size).size(words)[0]) / FINER

    def text(
        self, at: tuple[float, float], words: str, size: int, color: Color, right: bool = False, center: bool = False
    ) -> None:
        """`at` is the upper left corner; with `right` the upper right corner, with `center` the top center."""
        picture = _font(size).render(words, True, color)
        left = FINER * at[0] - (picture.get_width() if right else picture.get_width() / 2 if center else 0)
        self._surface.blit(picture, (round(left), round(FINER * at[1])))

    def pixels(self) -> Array:
        """The picture, `[height, width, 3]`."""
        small = self._pygame.transform.smoothscale(self._surface, self._size)
        return np.ascontiguousarray(np.transpose(self._pygame.surfarray.array3d(small), (1, 0, 2)))


@cache
def _font(size: int) -> "Font":
    import pygame

    pygame.font.init()
    pygame.register_quit(_font.cache_clear)  # fonts become invalid when another environment quits pygame
    return pygame.font.Font(None, round(1.35 * size * FINER))  # pygame's sizes include line spacing


def _darker(color: Color) -> Color:
    return color[0] * 6 // 10, color[1] * 6 // 10, color[2] * 6 // 10
